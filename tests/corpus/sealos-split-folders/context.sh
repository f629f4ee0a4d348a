mkdir -p registry manifests images/shim charts
echo r > registry/r; echo m > manifests/m.yaml; echo i > images/shim/i; echo c > charts/c
