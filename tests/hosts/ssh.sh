#!/bin/sh
# In place of ssh: "ssh.sh -x ADDRESS COMMAND…" runs a command on a host of network.py, through a shell as ssh does.
# KEEPERS has the process of each host: "10.77.0.1=4711 10.77.0.2=4712".
while [ "${1#-}" != "$1" ]; do shift; done
for keeper in $KEEPERS; do
    if [ "${keeper%=*}" = "$1" ]; then pid=${keeper#*=}; fi
done
shift
exec nsenter --target "${pid:?no such host}" --net --uts --pid --mount -- sh -c "$*"
