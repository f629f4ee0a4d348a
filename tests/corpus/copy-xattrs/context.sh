echo a > a; setfattr -n user.color -v blue a
echo b > b; setcap cap_net_bind_service+ep b
mkdir d; setfattr -n user.dir -v yes d
