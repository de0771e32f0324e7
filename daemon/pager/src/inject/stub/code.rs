//! What the stub runs.

use super::layout::{ENDED, LOOKS, MOVING, SHUT};

// rbx = the comm page, r12 = calls left of this ring, r13 = the next, r14 = the ring's number, r15
// = whether it is answered. Never touches a stack. Whatever wakes it (a stop does), it looks
// whether it was rung for.
std::arch::global_asm!(
    ".pushsection .rodata",
    ".balign 16",
    // Other units of the crate may refer to them.
    ".globl annex_stub_code, annex_stub_code_end",
    ".hidden annex_stub_code, annex_stub_code_end",
    "annex_stub_code:",
    "2: mov r14d, [rbx + 16]",
    "   cmp r14d, [rbx + 20]",
    "   jne 7f",
    "   lea rdi, [rbx + 16]",
    "   mov esi, {wait}",
    "   mov edx, r14d",
    "   xor r10d, r10d",
    "   mov eax, {futex}",
    "   syscall",
    "   jmp 2b",
    "7: mov r12d, [rbx]",
    "   mov r13d, [rbx + 4]",
    "   shl r13d, 6",
    "   lea r13, [rbx + r13 + 64]",
    "   mov r15d, [rbx + 24]",
    "3: test r12d, r12d",
    "   jz 4f",
    "   mov ecx, {looks}",
    "5: mov eax, [rbx + 8]", // the gate
    "   test eax, {shut} + {ended}",
    "   jnz 6f",
    "   mov edx, eax",
    "   or edx, {moving}",
    "   lock cmpxchg [rbx + 8], edx",
    "   jne 5b",
    "   mov rax, [r13]",
    "   mov rdi, [r13 + 8]",
    "   mov rsi, [r13 + 16]",
    "   mov rdx, [r13 + 24]",
    "   mov r10, [r13 + 32]",
    "   mov r8, [r13 + 40]",
    "   mov r9, [r13 + 48]",
    "   syscall",
    "   mov [r13 + 56], rax",
    "   add r13, 64",
    "   dec r12d",
    "   dec dword ptr [rbx + 12]",
    "   lock and dword ptr [rbx + 8], {rests}",
    "   jmp 3b",
    "6: test eax, {ended}",
    "   jnz 4f",
    "   pause",
    "   dec ecx",
    "   jnz 5b",
    "   lock or dword ptr [rbx + 8], {ended}",
    "4: mov [rbx + 20], r14d",
    "   test r15d, r15d",
    "   jz 2b",
    "   lea rdi, [rbx + 20]",
    "   mov esi, {wake}",
    "   mov edx, {all}",
    "   mov eax, {futex}",
    "   syscall",
    "   jmp 2b",
    "annex_stub_code_end:",
    ".popsection",
    futex = const libc::SYS_futex,
    wait = const libc::FUTEX_WAIT,
    wake = const libc::FUTEX_WAKE,
    all = const i32::MAX,
    looks = const LOOKS,
    moving = const MOVING,
    rests = const !MOVING as i32,
    shut = const SHUT,
    ended = const ENDED,
);

unsafe extern "C" {
    static annex_stub_code: u8;
    static annex_stub_code_end: u8;
}

pub(super) fn code() -> &'static [u8] {
    let (start, end) = (&raw const annex_stub_code, &raw const annex_stub_code_end);
    // SAFETY: the two labels enclose the assembly above, which is read-only data of this program.
    unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
}
