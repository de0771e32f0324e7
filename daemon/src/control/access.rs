//! Who a peer is and what it may do.
//!
//! The kernel records a peer's credentials when it connects and hands them out by `SO_PEERCRED` and
//! `SO_PEERGROUPS`; nothing the peer says about itself counts. Root and members of the operators'
//! group (`annex`) may do everything. Anyone else sees their own apps only, and may manage a
//! process only if its real, effective and saved user ids are all theirs: a set-user-id program
//! isn't its caller's to slow down.

use super::Caller;
use annex_shared::api::{ApiError, AppInfo, ErrorCode, Target};
use annex_shared::event::Event;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// One control connection's other end.
#[derive(Clone, Debug)]
pub struct Peer {
    pub caller: Caller,
    groups: Vec<u32>,
}

impl Peer {
    /// Asks the kernel who connected.
    pub fn of(socket: &impl AsFd) -> io::Result<Peer> {
        let credentials = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials)?;
        let caller = Caller { pid: credentials.pid(), uid: credentials.uid(), gid: credentials.gid(), confined: true };
        Ok(Peer { caller, groups: supplementary_groups(socket)? })
    }

    /// What this peer may do, given the operators' group if the host has one.
    pub fn authority(&self, operators: Option<u32>) -> Authority {
        let operator = operators.is_some_and(|gid| self.caller.gid == gid || self.groups.contains(&gid));
        if self.caller.uid == 0 || operator { Authority::Everything } else { Authority::Own(self.caller.uid) }
    }
}

fn supplementary_groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 32];
    loop {
        let mut len = libc::socklen_t::try_from(size_of_val(&groups[..])).map_err(io::Error::other)?;
        // SAFETY: getsockopt writes at most `len` bytes to the vector, which holds that many, and
        // the length back to `len`.
        let rc = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let count = len as usize / size_of::<u32>();
        if rc == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // ERANGE: more groups than room; the kernel has set `len` to what it takes.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// Who may do everything besides root.
#[derive(Clone, Debug)]
pub enum Operators {
    /// Members of the group of this name, which need not exist.
    Group(String),
    /// Members of the group with this id.
    Gid(u32),
}

impl Operators {
    /// Looked up anew each time, so that a group made while annexd runs counts. May block on the
    /// name service.
    pub fn gid(&self) -> Option<u32> {
        match self {
            Operators::Gid(gid) => Some(*gid),
            Operators::Group(name) => nix::unistd::Group::from_name(name).ok().flatten().map(|g| g.gid.as_raw()),
        }
    }
}

/// What a peer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    Everything,
    /// Only what belongs to this user.
    Own(u32),
}

impl Authority {
    /// Whether this app exists as far as the peer is concerned.
    pub fn covers(self, app: &AppInfo) -> bool {
        self.is_over(app.uid)
    }

    /// Whether the peer may hear of this: what is about somebody's app is for its user.
    pub fn may_know(self, event: &Event) -> bool {
        event.uid.is_none_or(|uid| self.is_over(uid))
    }

    fn is_over(self, user: u32) -> bool {
        match self {
            Authority::Everything => true,
            Authority::Own(uid) => user == uid,
        }
    }

    /// Whether the peer may have this target managed. Process ids can be reused between this look
    /// and the attach, so the pager checks the process it then holds once more against
    /// [`Caller::uid`].
    pub fn may_attach(self, target: &Target) -> Result<(), ApiError> {
        let Authority::Own(uid) = self else { return Ok(()) };
        let of_root = |what: &str, name: &str, all: &str| {
            Err(ApiError {
                kind: ErrorCode::Forbidden,
                message: format!("may not attach {what} {name}: {all} belong to root"),
                remedy: "ask as root or as a member of group annex".into(),
            })
        };
        match target {
            Target::Unit(unit) => of_root("unit", unit, "units"),
            Target::Cgroup(folder) => of_root("cgroup", folder, "cgroups"),
            Target::Container(name) => of_root("container", name, "containers"),
            Target::Pid(pid) | Target::Launch(pid) | Target::Region { pid, .. } => {
                let owner = ProcessOwner::of(*pid)?;
                if owner.is_wholly(uid) {
                    return Ok(());
                }
                Err(ApiError {
                    kind: ErrorCode::Forbidden,
                    message: format!("may not attach process {pid}: {owner}, you are user {uid}"),
                    remedy: "ask as root or as a member of group annex".into(),
                })
            }
        }
    }
}

/// A process's user ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessOwner {
    real: u32,
    effective: u32,
    saved: u32,
}

impl ProcessOwner {
    fn of(pid: i32) -> Result<ProcessOwner, ApiError> {
        let gone = || ApiError {
            kind: ErrorCode::NotFound,
            message: format!("there is no process {pid}"),
            remedy: String::new(),
        };
        if pid <= 0 {
            return Err(gone());
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|_| gone())?;
        ProcessOwner::parse(&status).ok_or_else(gone)
    }

    fn parse(status: &str) -> Option<ProcessOwner> {
        let line = status.lines().find_map(|l| l.strip_prefix("Uid:"))?;
        let mut ids = line.split_whitespace().map(|n| n.parse().ok());
        Some(ProcessOwner { real: ids.next()??, effective: ids.next()??, saved: ids.next()?? })
    }

    fn is_wholly(self, uid: u32) -> bool {
        [self.real, self.effective, self.saved] == [uid; 3]
    }
}

impl std::fmt::Display for ProcessOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_wholly(self.real) {
            return write!(f, "it belongs to user {}", self.real);
        }
        write!(f, "it runs as users {} (real), {} (effective) and {} (saved)", self.real, self.effective, self.saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: u32, groups: &[u32]) -> Peer {
        Peer { caller: Caller { pid: 1, uid, gid, confined: true }, groups: groups.to_vec() }
    }

    #[test]
    fn root_and_the_operators_group_may_do_everything() {
        assert_eq!(peer(0, 0, &[]).authority(None), Authority::Everything);
        assert_eq!(peer(1000, 77, &[]).authority(Some(77)), Authority::Everything);
        assert_eq!(peer(1000, 1000, &[5, 77]).authority(Some(77)), Authority::Everything);
    }

    #[test]
    fn anyone_else_is_confined_to_their_own() {
        assert_eq!(peer(1000, 1000, &[5]).authority(Some(77)), Authority::Own(1000));
        assert_eq!(peer(1000, 0, &[0]).authority(None), Authority::Own(1000));
    }

    #[test]
    fn cgroups_whatever_names_them_are_roots() {
        for target in [Target::Unit("a".into()), Target::Cgroup("a".into()), Target::Container("a".into())] {
            let refused = Authority::Own(1000).may_attach(&target).unwrap_err();
            assert!(refused.kind == ErrorCode::Forbidden && refused.message.ends_with("belong to root"), "{refused}");
            assert_eq!(Authority::Everything.may_attach(&target), Ok(()));
        }
    }

    #[test]
    fn a_set_user_id_process_is_nobodys_but_roots() {
        let sudo = ProcessOwner::parse("Name:\tsudo\nUid:\t1000\t0\t0\t0\n").unwrap();
        let dropped = ProcessOwner::parse("Uid:\t1000\t1000\t0\t1000\n").unwrap();
        let plain = ProcessOwner::parse("Uid:\t1000\t1000\t1000\t1000\n").unwrap();
        assert!(!sudo.is_wholly(1000) && !dropped.is_wholly(1000) && plain.is_wholly(1000));
    }

    #[test]
    fn the_kernel_says_who_is_at_the_other_end() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        let me = Peer::of(&a).unwrap();
        assert_eq!(me.caller.pid, std::process::id() as i32);
        assert_eq!(me.caller.uid, nix::unistd::getuid().as_raw());
        let groups: Vec<u32> = nix::unistd::getgroups().unwrap().iter().map(|g| g.as_raw()).collect();
        assert_eq!(me.groups, groups);
    }
}
