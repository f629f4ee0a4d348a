mkdir -p one/s two/s one/only1 two/only2
echo 1 > one/s/f; echo 2 > two/s/f; echo 1 > one/s/a; echo 2 > two/s/b
chmod 700 one/s; chmod 711 two/s
