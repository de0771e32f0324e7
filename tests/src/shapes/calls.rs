//! System calls whose error is their answer. The C library leaves it in thread-local storage, which
//! a process that shares the memory shares with its maker: one would read the other's.

use super::report::{Text, Wrong};
use std::arch::asm;
use std::ffi::CStr;

/// Makes the call. `Err` is the error's number.
///
/// # Safety
/// As of the call itself.
pub unsafe fn call<const N: usize>(number: libc::c_long, args: [usize; N]) -> Result<usize, i32> {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&args);
    let answer: isize;
    // SAFETY: the kernel's convention; it changes rcx and r11 alone, and the memory that the caller
    // vouches for.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") all[0], in("rsi") all[1], in("rdx") all[2], in("r10") all[3], in("r8") all[4], in("r9") all[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&answer) { Err(-answer as i32) } else { Ok(answer as usize) }
}

/// The same, with an error that names the call.
///
/// # Safety
/// As of the call itself.
pub unsafe fn named<const N: usize>(
    what: &'static str,
    number: libc::c_long,
    args: [usize; N],
) -> Result<usize, Wrong> {
    // SAFETY: the caller's promise.
    unsafe { call(number, args) }.map_err(|errno| Wrong::Call { what, errno })
}

/// Replaces the program: arguments that end with a zero byte each, and more of them. Comes back if
/// it can't.
pub fn exec<'a>(path: &CStr, args: &Text, more: impl Iterator<Item = &'a CStr>) -> Wrong {
    let mut argv = [std::ptr::null(); 16];
    let starts = args.parts().chain(more.map(CStr::as_ptr));
    argv[0] = path.as_ptr();
    argv[1..15].iter_mut().zip(starts).for_each(|(at, start)| *at = start);
    // SAFETY: the environment that the program was given, which nobody changes.
    let environment = unsafe { environ };
    let args = [path.as_ptr().addr(), argv.as_ptr().addr(), environment.addr()];
    // SAFETY: lists of texts, each with a zero at its end, and a null behind the last.
    match unsafe { call(libc::SYS_execve, args) } {
        Ok(_) => unreachable!("it is another program now"),
        Err(errno) => Wrong::Call { what: "exec", errno },
    }
}

unsafe extern "C" {
    static environ: *const *const libc::c_char;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_says_why_and_leaves_the_threads_own_error_alone() {
        nix::errno::Errno::EXDEV.set();
        // SAFETY: a descriptor that nobody has.
        assert_eq!(unsafe { call(libc::SYS_close, [usize::MAX]) }, Err(libc::EBADF));
        // SAFETY: it only asks.
        assert_eq!(unsafe { call(libc::SYS_getpid, []) }, Ok(std::process::id() as usize));
        assert_eq!(nix::errno::Errno::last(), nix::errno::Errno::EXDEV);
    }
}
