echo a > a; setfattr -n user.color -v blue a
echo b > b
mkdir d; setfattr -n user.dir -v yes d
