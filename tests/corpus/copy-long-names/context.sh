n100=$(printf 'n%.0s' {1..100})
n255=$(printf 'm%.0s' {1..255})
echo a > "$n100"; echo b > "$n255"
mkdir -p "p/$n100/$n100/$n100"
echo c > "p/$n100/$n100/$n100/$n255"
ln -s "p/$n100/$n100/$n100/$n255" link
ln "$n255" hard
