#!/bin/bash -e
# the endpoint of the cluster's API, which imgctl does not manage
# IMGCTL_NAME: its name or address.

getent ahosts "$IMGCTL_NAME" >/dev/null && exit
echo "this host cannot resolve $IMGCTL_NAME, the endpoint of the cluster's API" >&2
echo 'add the name to DNS or to the hosts file, then run the same command again' >&2
exit 1
