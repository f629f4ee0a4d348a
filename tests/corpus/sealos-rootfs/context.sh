mkdir -p bin etc scripts images/shim manifests charts/a registry/docker/registry/v2/repositories/library/a statics opt cri
for f in bin/kubelet scripts/init.sh opt/sealctl; do echo "$f" > $f; chmod 755 $f; done
echo x > etc/config.toml.tmpl; echo y > images/shim/list; echo z > manifests/m.yaml; echo a > charts/a/Chart.yaml
echo r > registry/docker/registry/v2/repositories/library/a/x; echo s > statics/audit-policy.yml; echo c > cri/c.tar.gz
