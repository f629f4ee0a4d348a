mkdir d; echo x > d/x
mkfifo d/pipe
