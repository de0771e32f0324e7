//! What is asked of the kernel about processes, by annexd and by the `annex` command.

use nix::errno::Errno;

/// Whether two processes share their memory (threads of one, or made by `CLONE_VM`); `None` where
/// the kernel does not tell.
pub fn same_address_space(a: i32, b: i32) -> Option<bool> {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: kcmp takes numbers only.
    match Errno::result(unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) }) {
        Ok(order) => Some(order == 0),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_shares_its_address_space_with_itself_only() {
        let me = std::process::id() as i32;
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (with_me, with_other) = (same_address_space(me, me), same_address_space(me, other.id() as i32));
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!((with_me, with_other), (Some(true), Some(false)));
    }
}
