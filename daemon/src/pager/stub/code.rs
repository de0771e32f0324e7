//! What the stub runs, and the page it shares with annexd.

use super::MAX_MOVES;
use super::gate;
use crate::pager::uffd::MoveArg;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

/// The shared page's layout; the assembly below knows the offsets.
#[repr(C, align(4096))]
pub(super) struct Comm {
    /// Calls to make, and the first of them.
    pub count: AtomicU32,
    pub first: AtomicU32,
    /// 8 bytes for eventfd reads and writes.
    word: AtomicU64,
    pub command: AtomicI64,
    pub done: AtomicI64,
    /// See [`gate`].
    pub gate: AtomicU32,
    pub left: AtomicU32,
    /// How often the doorbell was rung, and which of these rings is over.
    pub rung: AtomicU32,
    pub over: AtomicU32,
    /// Whether this ring is to be answered.
    pub answers: AtomicU32,
    pad: u32,
    /// Where threads of the program write what they are asked for.
    pub answer: AtomicU64,
    pub calls: [Call; MAX_MOVES],
    pub moves: [MoveArg; MAX_MOVES],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub number: i64,
    pub args: [u64; 6],
    pub result: i64,
}

const _: () = {
    assert!(std::mem::offset_of!(Comm, first) == 4);
    assert!(std::mem::offset_of!(Comm, word) == 8);
    assert!(std::mem::offset_of!(Comm, command) == 16);
    assert!(std::mem::offset_of!(Comm, done) == 24);
    assert!(std::mem::offset_of!(Comm, gate) == 32);
    assert!(std::mem::offset_of!(Comm, left) == 36);
    assert!(std::mem::offset_of!(Comm, rung) == 40);
    assert!(std::mem::offset_of!(Comm, over) == 44);
    assert!(std::mem::offset_of!(Comm, answers) == 48);
    assert!(std::mem::offset_of!(Comm, answer) == 56);
    assert!(std::mem::offset_of!(Comm, calls) == 64);
    assert!(size_of::<Call>() == 64);
};

// rbx = the comm page, r12 = calls left of this ring, r13 = the next, r14 = the ring's number, r15 = whether it is answered. Never touches a stack. A short read of the doorbell (EINTR after a stop) tries again.
std::arch::global_asm!(
    ".pushsection .rodata",
    ".balign 16",
    // Other units of the crate may refer to them.
    ".globl annex_stub_code, annex_stub_code_end",
    ".hidden annex_stub_code, annex_stub_code_end",
    "annex_stub_code:",
    "2: mov rdi, [rbx + 16]",
    "   lea rsi, [rbx + 8]",
    "   mov edx, 8",
    "   xor eax, eax", // read
    "   syscall",
    "   cmp rax, 8",
    "   jne 2b",
    "   mov r12d, [rbx]",
    "   mov r13d, [rbx + 4]",
    "   shl r13d, 6",
    "   lea r13, [rbx + r13 + 64]",
    "   mov r14d, [rbx + 40]",
    "   mov r15d, [rbx + 48]",
    "3: test r12d, r12d",
    "   jz 4f",
    "   mov ecx, {looks}",
    "5: mov eax, [rbx + 32]", // the gate
    "   test eax, {shut} + {ended}",
    "   jnz 6f",
    "   mov edx, eax",
    "   or edx, {moving}",
    "   lock cmpxchg [rbx + 32], edx",
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
    "   dec dword ptr [rbx + 36]",
    "   lock and dword ptr [rbx + 32], {rests}",
    "   jmp 3b",
    "6: test eax, {ended}",
    "   jnz 4f",
    "   pause",
    "   dec ecx",
    "   jnz 5b",
    "   lock or dword ptr [rbx + 32], {ended}",
    "4: mov [rbx + 44], r14d",
    "   test r15d, r15d",
    "   jz 2b",
    "   mov qword ptr [rbx + 8], 1",
    "   mov rdi, [rbx + 24]",
    "   lea rsi, [rbx + 8]",
    "   mov edx, 8",
    "   mov eax, 1", // write
    "   syscall",
    "   jmp 2b",
    "annex_stub_code_end:",
    ".popsection",
    looks = const gate::LOOKS,
    moving = const gate::MOVING,
    rests = const !gate::MOVING as i32,
    shut = const gate::SHUT,
    ended = const gate::ENDED,
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
