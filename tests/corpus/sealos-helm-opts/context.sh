mkdir -p charts/demo registry/docker/registry/v2/blobs/sha256/aa
echo 'name: demo' > charts/demo/Chart.yaml
echo blob > registry/docker/registry/v2/blobs/sha256/aa/data
