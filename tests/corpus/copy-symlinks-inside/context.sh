mkdir dir
echo x > dir/x
ln -s dir/x relative
ln -s /dir/x absolute
ln -s nowhere dangling
ln -s dir to-dir
ln -s ../../../../etc/passwd outside
ln -s loop2 loop1; ln -s loop1 loop2
ln -s . self
ln -s "$(printf 'x%.0s' {1..300})" long
