"""What attributes, package names and schedules of other libraries are here. Only errors use it, by ``habits``."""

from __future__ import annotations

from collections.abc import Mapping

ATTRIBUTES: Mapping[str, str] = {
    **{
        name: f"x.numpy().{name}(…)"
        for name in ("argmax", "argmin", "any", "all", "sort", "argsort", "round", "tolist")
    },
    **dict.fromkeys(("view", "flatten", "squeeze", "unsqueeze", "expand"), "x.reshape(…)"),
    **dict.fromkeys(("permute", "t", "swapaxes"), "x.transpose(…) or x.T"),
    **dict.fromkeys(("cuda", "cpu", "to"), 'model.to("gpu"), Pipeline(…, device="gpu"), and x.numpy()'),
    **dict.fromkeys(("clone", "copy"), "x.detach(), or x * 1 with its graph"),
    **dict.fromkeys(("add_", "sub_", "mul_", "div_", "zero_", "fill_", "copy_"), "x = x + 1, which makes a new tensor"),
    "pow": "x ** 2",
    **dict.fromkeys(("clamp", "clip"), "functional.clip(x, low, high)"),
    **{name: f"functional.{name}(x, …)" for name in ("masked_fill", "where", "softmax", "log_softmax")},
    "abs": "functional.sqrt(x * x)",
    "std": "x.var(…).sqrt()",
    "matmul": "x @ y",
    "grad_fn": "x.node",
    "type": "x.astype(dtype)",
    "half": "x.astype(numpy.float16)",
    "float": "x.astype(numpy.float32)",
    "double": "x.astype(numpy.float64)",
    "requires_grad_": "Tensor(data, requires_grad=True)",
    "retain_grad": "Tensor(data, requires_grad=True), which keeps its gradient",
}


_LOSS_IS_A_NUMBER = "the loss is a number, and step() has run backward already; optimiser.step() is next"
_MODEL = "pipeline.state_dict(), or minipipe.checkpoint.save(folder, pipeline, optimiser)"
CALLED = "pipeline.step(x, y) for forward and backward, pipeline.predict(x) for forward only"
_HALVES = 'Pipeline(…, device="gpu"), and the dtype of the layers'
_OF_LOSS = {
    **dict.fromkeys(("backward", "grad", "requires_grad", "grad_fn", "retain_grad"), _LOSS_IS_A_NUMBER),
    **dict.fromkeys(("detach", "cpu", "numpy", "data", "loss", "mean"), "float(loss)"),
}
# By class: names of other libraries, and their equivalents.
OF_CLASS: Mapping[str, Mapping[str, str]] = {
    "Tensor": {**ATTRIBUTES, "numel": "x.size", **dict.fromkeys(("dim", "ndimension"), "x.ndim")},
    "Pipeline": {
        "zero_grad": "nothing: step() overwrites the gradients; step(…, accumulate=True) adds to them",
        **dict.fromkeys(("forward", "__call__"), CALLED),
        "backward": "pipeline.step(x, y), which runs forward and backward",
        **dict.fromkeys(("train_batch", "fit", "train_on_batch", "forward_backward_func"), "pipeline.step(x, y)"),
        **dict.fromkeys(("eval_batch", "score", "validate", "test"), "pipeline.evaluate(x, y)"),
        **dict.fromkeys(
            ("compile", "configure_optimizers"), "Pipeline(…, loss=…), then optim.SGD(pipeline.parameters(), …)"
        ),
        **dict.fromkeys(("to", "cuda", "cpu", "half", "bfloat16"), _HALVES),
        **dict.fromkeys(("save", "save_checkpoint", "save_weights", "load", "load_checkpoint"), _MODEL),
        "training": "pipeline.is_training",
        **dict.fromkeys(("stage_index", "is_first_stage", "is_last_stage", "stage_id"), "pipeline.local_stages"),
        **dict.fromkeys(("modules", "children", "named_modules"), "pipeline.model, or print(pipeline)"),
        "clip_grad_norm_": "pipeline.clip_grad_norm(max_norm)",
        "n_microbatches": "pipeline.schedule.num_microbatches",
        "summary": "print(pipeline)",
    },
    "BatchLoss": _OF_LOSS,
    "PendingLoss": _OF_LOSS,
    "Optimiser": {
        "param_groups": "optimiser.groups",
        **dict.fromkeys(("lr", "get_last_lr"), "optimiser.learning_rate"),
        **dict.fromkeys(("minimize", "apply_gradients", "update"), "optimiser.step(), after pipeline.step(x, y)"),
        "state": "optimiser.state_dict()",
        "add_param_group": "a list of groups when it is made",
    },
    "Module": {
        "training": "module.is_training",
        **dict.fromkeys(("cuda", "cpu"), 'module.to("gpu") and module.to("cpu")'),
        **dict.fromkeys(("half", "float", "double", "type"), "dtype= when the layer is made"),
        "requires_grad_": "module.freeze(), or parameter.requires_grad = False",
        "register_buffer": "set an array as an attribute",
        "register_parameter": "set an nn.Parameter as an attribute",
        "register_forward_hook": "minipipe.watch_everything",
        **dict.fromkeys(("children", "named_children", "named_modules"), "module.modules()"),
        **dict.fromkeys(("apply", "reset_parameters"), "module.initialise(seed)"),
        **dict.fromkeys(("fit", "compile", "train_step"), "Pipeline(model, group, loss=…).step(x, y)"),
        "predict": "model(x), or Pipeline(model, group).predict(x)",
    },
    "ProcessGroup": {
        **dict.fromkeys(("get_rank", "Get_rank"), "group.rank"),
        **dict.fromkeys(("get_world_size", "Get_size"), "group.size"),
        **dict.fromkeys(("allreduce", "Allreduce"), "group.all_reduce(array)"),
        **dict.fromkeys(("allgather", "Allgather"), "group.all_gather(array)"),
        **{name: f"group.{name.lower()}" for name in ("Send", "Isend", "Recv", "Irecv", "Barrier", "Split")},
        **dict.fromkeys(("bcast", "Bcast", "broadcast_object_list"), "group.broadcast(…)"),
    },
}
_SPAWNED = "minipipe.init_process_group() under mpirun, or minipipe.spawn(function, num_ranks)"
BY_NAME = 'Pipeline(…, schedule="gpipe"); minipipe.schedules.REGISTRY lists all names'
# Of the packages minipipe and minipipe.schedules.
OF_PACKAGE: Mapping[str, str] = {
    **dict.fromkeys(("PipelineStage", "GPipe", "PipelineModule", "Pipe"), "minipipe.Pipeline"),
    **dict.fromkeys(("SplitPoint", "LayerSpec"), "Pipeline(…, partition=…)"),
    **dict.fromkeys(("distributed", "launch", "mp", "initialize"), _SPAWNED),
    **dict.fromkeys(("get_rank", "get_world_size"), "group.rank and group.size"),
    "destroy_process_group": "group.close(), or `with init_process_group() as group:`",
    **dict.fromkeys(("zeros", "ones", "randn", "rand", "arange", "as_tensor", "from_numpy"), "Tensor(numpy array)"),
    **dict.fromkeys(("manual_seed", "seed", "set_seed"), "Pipeline(…, seed=…), or module.initialise(seed)"),
    **dict.fromkeys(("save", "load"), "minipipe.checkpoint"),
    **dict.fromkeys(("cat", "concat", "stack", "softmax", "relu", "matmul"), "minipipe.functional"),
    **dict.fromkeys(("optimizers", "optimizer"), "minipipe.optim"),
    **dict.fromkeys(("layers", "Module", "Linear", "Sequential"), "minipipe.nn"),
    **dict.fromkeys(("inference_mode", "set_grad_enabled"), "minipipe.no_grad()"),
}
# Names of schedules in lower case, without signs and without "schedule": PyTorch's classes, Megatron's functions,
# DeepSpeed's classes, papers.
SCHEDULES: Mapping[str, str] = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved-1f1b",
    "loopedbfs": "looped-bfs",
    "dualpipev": "dualpipe-v",
    **dict.fromkeys(("pipedream", "pipedreamflush", "dapple", "train", "oneforwardonebackward"), "1f1b"),
    **dict.fromkeys(("forwardbackwardpipeliningwithoutinterleaving", "nonloopedonef1b", "onef1b"), "1f1b"),
    **dict.fromkeys(("interleaved", "forwardbackwardpipeliningwithinterleaving", "virtual"), "interleaved-1f1b"),
    **dict.fromkeys(("forwardbackwardnopipelining", "nopipelining", "dataparallel", "naive"), "sequential"),
    **dict.fromkeys(("filldrain", "afab", "allforwardallbackward"), "gpipe"),
    **dict.fromkeys(("interleavedzerobubble", "interleavedzb1p"), "interleaved-zb"),
    **dict.fromkeys(("zbvzerobubble", "zbv", "zbvpp"), "zb-v"),
    **dict.fromkeys(("zerobubble", "zb", "zb1p", "zbh1"), "zb-h1"),
    **dict.fromkeys(("zb2p", "zbh2"), "zb-h2"),
    **dict.fromkeys(("bfs", "breadthfirst", "loopedbreadthfirst"), "looped-bfs"),
    "dualpipe": "dualpipe-v",
    **dict.fromkeys(("inference", "forward"), "forward-only"),
}
