//! Tests whether the new kubelet accepts the flags and configuration of the running one, by
//! starting it before anything has changed.

use crate::runtime::action::{Line, Site};
use crate::runtime::kubeadm::upgrade::target::Target;
use imgctl_base::error::Result;

/// Runs the new kubelet with a missing kubeconfig: it reads flags and configuration, fails to load
/// the kubeconfig, and exits. Flags that kubeadm has written and will remove itself are left out.
const TRY: &str = r#"
pid=$(systemctl show -p MainPID --value kubelet 2>/dev/null || true)
if [ "${pid:-0}" = 0 ] || [ ! -r "/proc/$pid/cmdline" ]; then echo 'no kubelet runs: its settings are not tried'; exit 0; fi
ours=" $(sed 's/^KUBELET_KUBEADM_ARGS=//; s/"//g' /var/lib/kubelet/kubeadm-flags.env 2>/dev/null | tr '\n' ' ') "
words=() place=program
while IFS= read -r -d '' word; do
  was=$place place=flag
  case $was in program | value) continue ;; esac
  case $word in
    --kubeconfig | --bootstrap-kubeconfig | --root-dir | --cert-dir) place=value; continue ;;
    --kubeconfig=* | --bootstrap-kubeconfig=* | --root-dir=* | --cert-dir=*) continue ;;
    --container-runtime=* | --network-plugin=* | --pod-infra-container-image=*)
      case $ours in *" $word "*) continue ;; esac ;;
  esac
  words+=("$word")
done <"/proc/$pid/cmdline"
scratch=$(mktemp -d)
timeout -k 5 20 "$tree/bin/kubelet" "${words[@]}" --kubeconfig="$scratch/none" --root-dir="$scratch/root" --cert-dir="$scratch/pki" </dev/null >"$scratch/said" 2>&1 || true
said=$(cat "$scratch/said"); rm -rf "$scratch"
grep -oE 'unknown field [\\"]+[^\\"]+' <<<"$said" | tr -d '\\"' | sort -u | sed 's/^/the configuration of the kubelet has an /; s/$/, which the new one passes over/' || true
case $said in *'kubeconfig: stat '*) echo 'the new kubelet takes the present flags and configuration'; exit 0 ;; esac
problem=$(grep -E 'unknown (shorthand )?flag|failed to parse kubelet flag|unrecognized feature gate|cannot set feature gate|failed to set feature gates|failed to load [Kk]ubelet config|failed to validate kubelet configuration|invalid configuration:' <<<"$said" | cut -c 1-500 | tail -n 5 || true)
if [ -n "$problem" ]; then
  echo "$problem" >&2
  echo "the new kubelet does not start with what this host's kubelet is set to; change kubelet's unit, /etc/default/kubelet or the ConfigMap kube-system/kubelet-config with /var/lib/kubelet/config.yaml, and restart it" >&2
  exit 1
fi
echo 'the new kubelet did not say whether it takes the present flags and configuration'
"#;

/// Fails if the new kubelet rejects them.
pub(super) fn check(site: &Site<'_>, target: &Target) -> Result<()> {
    let line = Line::repeatable(format!("tree={}{TRY}", target.tree));
    site.run_on(site.agent, &line, "-kubelet").map(|_| ())
}
