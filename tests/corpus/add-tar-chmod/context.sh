mkdir -p t/dir
echo one > t/one; chmod 755 t/one; echo two > t/dir/two; ln -s one t/link; ln t/one t/hard
touch -d @100000000 t/one t/dir/two; touch -h -d @100000000 t/link; touch -d @100000000 t/dir t
echo a > a.txt
tar --sort=name --owner=3 --group=4 --numeric-owner -C t -c dir hard link one > a.tar
rm -rf t
