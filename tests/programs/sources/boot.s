# A boot sector that computes: writes a line to the serial port after each of ROUNDS rounds, then ends the machine by a triple fault.
.code16
.globl _start
_start:
    xorl %eax, %eax
    movw %ax, %ds
    movw %ax, %ss
    movw $0x7c00, %sp
    movl $12345, %ebx
    movl $ROUNDS, %ebp
round:
    movl $LENGTH, %ecx
step:
    imull $1103515245, %ebx, %ebx
    addl $12345, %ebx
    roll $5, %ebx
    decl %ecx
    jnz step
    movl $8, %ecx
digit:
    roll $4, %ebx
    movb %bl, %al
    andb $15, %al
    addb $48, %al
    cmpb $58, %al
    jb put
    addb $39, %al
put:
    movw $0x3f8, %dx
    outb %al, %dx
    decl %ecx
    jnz digit
    movb $10, %al
    outb %al, %dx
    decl %ebp
    jnz round
    lidt none
    int3
none:
    .word 0
    .long 0
.org 510
.word 0xaa55
