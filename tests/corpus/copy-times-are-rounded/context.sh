echo c > more; touch -d '2001-02-03 04:05:06.789' more
echo d > half; touch -d '2001-02-03 04:05:06.5' half
echo e > less; touch -d '2001-02-03 04:05:06.499999999' less
