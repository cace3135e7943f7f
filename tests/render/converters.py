"""Converters of SVG to pixels: CairoSVG, and svglib by way of a PDF. They share no
code.
"""

import io
import logging

import numpy as np
import pytest

SCALE = 2  # pixels of the image for each pixel of the SVG


def with_cairosvg(svg):
    """Return the pixels of an SVG, of shape (height, width, 3), as CairoSVG draws
    it.
    """
    return png_pixels(cairosvg().svg2png(svg.encode(), scale=SCALE))


def with_svglib(svg):
    """Return the pixels of an SVG, of shape (height, width, 3), as svglib and ReportLab
    draw it into a PDF.
    """
    from reportlab.graphics import renderPDF
    from svglib.svglib import svg2rlg

    logging.getLogger("svglib").setLevel(logging.ERROR)
    return pdf_pixels(renderPDF.drawToString(svg2rlg(io.BytesIO(svg.encode()))))


def cairosvg():
    """Return the module, or skip the test."""
    try:
        return __import__("cairosvg")
    except (ImportError, OSError):
        return pytest.skip(
            "needs Cairo (apt-get install libcairo2, pip install cairosvg)"
        )


def png_pixels(png):
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def pdf_pixels(pdf):
    """Return the pixels of the only page of a PDF, which counts 0.75 points for a pixel
    of the SVG.
    """
    import pypdfium2

    (page,) = pypdfium2.PdfDocument(pdf)
    return np.asarray(page.render(scale=SCALE / 0.75).to_pil().convert("RGB"))
