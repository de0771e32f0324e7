//! What somebody who asked for something impossible reads.

use crate::inject::attach::AttachError;
use crate::inject::stub::StubError;
use annex_shared::api::{ApiError, ErrorCode};

pub fn error(kind: ErrorCode, message: String, remedy: &str) -> ApiError {
    ApiError { kind, message, remedy: remedy.to_owned() }
}

pub fn no_app(id: u64) -> ApiError {
    error(ErrorCode::NotFound, format!("there is no app {id}"), "'annex apps' lists them")
}

pub fn refused(e: AttachError) -> ApiError {
    let (kind, remedy) = match &e {
        AttachError::NoProcess(_) => (ErrorCode::NotFound, "check the PID with ps"),
        AttachError::NoMemory(_) => (ErrorCode::Unsuitable, "attach a running program"),
        AttachError::Shared { .. } => (ErrorCode::AlreadyAttached, "'annex apps' lists what is managed"),
        AttachError::Exempt { .. } => (ErrorCode::Unsuitable, "attach another process"),
        AttachError::Traced { .. } => (ErrorCode::Unsuitable, "end the debugger or strace, then attach again"),
        AttachError::Privileged { .. } => (ErrorCode::Forbidden, "ask as root or as a member of group annex"),
        AttachError::ThirtyTwoBit(_) => (ErrorCode::Unsuitable, "only 64-bit programs can be paged"),
        AttachError::Foreign { .. } => (ErrorCode::Unsuitable, "end the other user of userfaultfd"),
        AttachError::NoRegion { .. } | AttachError::Waiters { .. } => {
            (ErrorCode::BadRequest, "use an annex-client library of annexd's version")
        }
        AttachError::Stub { source: StubError::Apart { is_the_programs: true, .. }, .. } => {
            (ErrorCode::Unsuitable, "the program is unharmed; attach it again when that has changed")
        }
        AttachError::Stub { .. } | AttachError::System { .. } => {
            (ErrorCode::Internal, "the program is unharmed; see annexd's log")
        }
    };
    error(kind, e.to_string(), remedy)
}
