head -c 5000000 /dev/zero | openssl enc -aes-128-ctr -K 00 -iv 00 2>/dev/null > big
truncate -s 3M sparse; printf tail >> sparse
head -c 1000000 /dev/zero > zeros
