echo s > s; chmod 4711 s; mkdir d; chmod 2775 d
tar --owner=0 --group=0 -cf a.tar s d; rm -r s d
