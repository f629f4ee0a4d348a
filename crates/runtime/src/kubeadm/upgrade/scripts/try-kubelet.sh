#!/bin/bash -e
# a kubelet, tried with a missing kubeconfig
# It reads flags and configuration, fails to load the kubeconfig, and exits. Flags that kubeadm has written and will
# remove itself are left out.
# IMGCTL_KUBELET: its path; if empty, the installed one. IMGCTL_CONFIG: path of its configuration; if empty, the one that
# the running kubelet has. IMGCTL_WITHOUT: flags that the running one has and this one does not get: `--name`.
# IMGCTL_MORE: flags to add: `--name=value`. IMGCTL_FIELDS: fields of the configuration that must be known. IMGCTL_WHAT:
# what is tried, and IMGCTL_ADVICE: what to do about a problem, for messages.

kubelet=${IMGCTL_KUBELET:-$(type -P kubelet || echo /usr/bin/kubelet)} config=$IMGCTL_CONFIG
pid=$(systemctl show -p MainPID --value kubelet 2>/dev/null || true)
if [ "${pid:-0}" = 0 ] || [ ! -r "/proc/$pid/cmdline" ]; then echo 'no kubelet runs: its settings are not tried'; exit 0; fi
ours=" $(sed 's/^KUBELET_KUBEADM_ARGS=//; s/"//g' /var/lib/kubelet/kubeadm-flags.env 2>/dev/null | tr '\n' ' ') "
words=() place=program
while IFS= read -r -d '' word; do
  was=$place place=flag
  case $was in
    program | value) continue ;;
    # kubeadm writes this file and no other.
    config)
      [ -z "$config" ] || [ "$word" != /var/lib/kubelet/config.yaml ] || word=$config
      words+=("$word"); continue ;;
  esac
  case " $IMGCTL_WITHOUT " in *" ${word%%=*} "*)
    case $word in *=*) ;; *) place=value ;; esac
    continue ;;
  esac
  case $word in
    --config=/var/lib/kubelet/config.yaml) word=--config=${config:-${word#--config=}} ;;
    --config) place=config ;;
  esac
  case $word in
    --kubeconfig | --bootstrap-kubeconfig | --root-dir | --cert-dir) place=value; continue ;;
    --kubeconfig=* | --bootstrap-kubeconfig=* | --root-dir=* | --cert-dir=*) continue ;;
    --container-runtime=* | --network-plugin=* | --pod-infra-container-image=*)
      case $ours in *" $word "*) continue ;; esac ;;
  esac
  words+=("$word")
done <"/proc/$pid/cmdline"
# shellcheck disable=SC2206
words+=($IMGCTL_MORE)
scratch=$(mktemp -d)
timeout -k 5 20 "$kubelet" "${words[@]}" --kubeconfig="$scratch/none" --root-dir="$scratch/root" --cert-dir="$scratch/pki" </dev/null >"$scratch/said" 2>&1 || true
said=$(cat "$scratch/said"); rm -rf "$scratch"
for field in $IMGCTL_FIELDS; do
  if grep -qE "unknown field [\\\\\"]+${field}[\\\\\"]+" <<<"$said"; then echo "the kubelet does not know the field $field of its configuration" >&2; exit 1; fi
done
grep -oE 'unknown field [\\"]+[^\\"]+' <<<"$said" | tr -d '\\"' | sort -u | sed 's/^/the configuration of the kubelet has an /; s/$/, which the new one passes over/' || true
case $said in *'kubeconfig: stat '*) echo "the kubelet takes $IMGCTL_WHAT"; exit 0 ;; esac
problem=$(grep -E 'unknown (shorthand )?flag|failed to parse kubelet flag|unrecognized feature gate|cannot set feature gate|failed to set feature gates|failed to load [Kk]ubelet config|failed to validate kubelet configuration|invalid configuration:' <<<"$said" | cut -c 1-500 | tail -n 5 || true)
if [ -n "$problem" ]; then
  echo "$problem" >&2
  [ -z "$IMGCTL_ADVICE" ] || echo "$IMGCTL_ADVICE" >&2
  exit 1
fi
echo "the kubelet did not say whether it takes $IMGCTL_WHAT"
