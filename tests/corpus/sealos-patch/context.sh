mkdir etc opt; echo e > etc/e; echo t > opt/tool; chmod 755 opt/tool
