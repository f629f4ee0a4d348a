echo s > s; chmod 6755 s
mkdir d; chmod 3777 d
