# Completion of imgctl for fish: imgctl itself says what fits.
complete -c imgctl -f -a '(imgctl complete -- (commandline -opc) (commandline -ct) 2>/dev/null)'
