mkdir -p d/e; echo x > d/x; chmod 751 d/x; ln -s x d/l; ln d/x d/h
chmod 700 d/e; chmod 1777 d
setfattr -n user.k -v v d/x
touch -d @100000000 d/x
