mkdir -p "t/$(printf 'd%.0s' {1..120})"
echo x > "t/$(printf 'd%.0s' {1..120})/$(printf 'f%.0s' {1..120})"; echo y > "t/$(printf 'latin-\374')"; echo z > 't/a b'
tar --format=gnu --owner=0 --group=0 -C t -cf gnu.tar .
tar --format=pax --owner=0 --group=0 -C t -cf pax.tar .
mkdir s; echo v > s/v; tar --format=v7 --owner=0 --group=0 -C s -cf v7.tar v
rm -rf t s
