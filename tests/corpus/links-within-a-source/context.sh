mkdir dir hard hard/sub t
echo one > dir/one.txt
echo h > hard/h1; ln hard/h1 hard/h2; ln hard/h1 hard/sub/h3
for n in one two; do
  echo "$n" > "t/$n"; ln "t/$n" "t/also-$n"
  touch -d @100000000 t/*
  tar --sort=name --owner=3 --group=4 --numeric-owner -C t -cf "$n.tar" "also-$n" "$n"
done
rm -r t
