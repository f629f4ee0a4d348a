for size in 0 1 511 512 513 1023 1024 1025 10239 10240 10241 65535 65536 65537; do
  yes "$size" | head -c "$size" > "s$size"
done
