mkdir -p dir/sub
echo x > dir/x; echo y > dir/sub/y
ln -s dir link
