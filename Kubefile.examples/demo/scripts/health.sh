#!/usr/bin/env bash
# Succeeds when this host's page answers with this image's version, for which it has ten seconds.
state=/cgi-bin/state
for _ in {1..20}; do
  exec 3<>"/dev/tcp/127.0.0.1/$demoPort" && printf 'GET %s HTTP/1.0\r\n\r\n' "$state" >&3 &&
    grep -q "\"version\":\"$SEALOS_SYS_KUBE_VERSION\"" <&3 && exit 0
  sleep 0.5
done 2>/dev/null
echo "the page on port $demoPort does not show version $SEALOS_SYS_KUBE_VERSION" >&2
exit 1
