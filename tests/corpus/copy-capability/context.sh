echo a > a; setfattr -n user.color -v blue a; setcap cap_net_bind_service+ep a
