# Made by amos export.  make -f out_kernel.mk test
CC ?= cc
CFLAGS ?= -O3 -fwrapv -fopenmp -Wno-psabi -mavx512f -mavx512vnni -mtune=native

.PHONY: test
test: out_kernel_test
	./out_kernel_test

out_kernel_test: out_kernel_test.c out_kernel.c out_kernel.h
	$(CC) $(CFLAGS) -o $@ out_kernel_test.c out_kernel.c -lm

libout_kernel.so: out_kernel.c out_kernel.h
	$(CC) $(CFLAGS) -fPIC -shared -o $@ out_kernel.c
