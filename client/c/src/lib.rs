//! The same for C: `include/annex.h` says what each of these does.

use client::{Error, Limit, Options, Region};
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// # Safety
/// Texts are null or end with a zero byte; `error` is null or has room for `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn annex_region_open(
    socket: *const c_char,
    length: usize,
    local: *const c_char,
    name: *const c_char,
    error: *mut c_char,
    error_size: usize,
) -> *mut Region {
    // SAFETY: the caller's promise.
    let [socket, local, name] = [socket, local, name].map(|text| unsafe { read(text) });
    // No panic may unwind into C.
    let opened = catch_unwind(AssertUnwindSafe(|| open(socket, length, local, name)))
        .unwrap_or_else(|_| Err("annex-client failed".into()));
    match opened {
        Ok(region) => Box::into_raw(Box::new(region)),
        Err(said) => {
            // SAFETY: the caller's promise.
            unsafe { write(&said, error, error_size) };
            std::ptr::null_mut()
        }
    }
}

fn open(socket: Option<String>, length: usize, local: Option<String>, name: Option<String>) -> Result<Region, String> {
    let local = local.map(|local| local.parse::<Limit>()).transpose().map_err(|error| error.to_string())?;
    let mut options = Options { local, name, ..Options::of(length) };
    if let Some(socket) = socket {
        options.socket = socket.into();
    }
    Region::new(options).map_err(|error: Error| error.to_string())
}

/// # Safety
/// `region` is one that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn annex_region_address(region: *const Region) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { (*region).as_ptr() }
}

/// # Safety
/// `region` is one that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn annex_region_length(region: *const Region) -> usize {
    // SAFETY: the caller's promise.
    unsafe { (*region).len() }
}

/// # Safety
/// `region` is one that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn annex_region_touch(region: *const Region, offset: usize, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { (*region).touch(offset..offset.saturating_add(length)) };
}

/// # Safety
/// `region` is null or one that is open, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn annex_region_close(region: *mut Region) {
    if !region.is_null() {
        // SAFETY: made by `annex_region_open`, and the caller's promise.
        drop(unsafe { Box::from_raw(region) });
    }
}

/// # Safety
/// `text` is null or ends with a zero byte.
unsafe fn read(text: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// As much of a text as there is room for, and a zero byte.
///
/// # Safety
/// `into` is null or has room for `size` bytes.
unsafe fn write(text: &str, into: *mut c_char, size: usize) {
    if into.is_null() || size == 0 {
        return;
    }
    let bytes = &text.as_bytes()[..text.len().min(size - 1)];
    // SAFETY: the caller's promise; the text is not the caller's memory.
    unsafe {
        into.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len());
        into.add(bytes.len()).write(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_cut_to_the_room_that_there_is() {
        let mut room = [7u8; 40];
        // SAFETY: the texts are null or C strings, and the room is as long as is said.
        let opened = unsafe {
            let (none, local) = (std::ptr::null(), c"much".as_ptr());
            annex_region_open(none, 1 << 20, local, none, room.as_mut_ptr().cast(), 12)
        };
        assert!(opened.is_null());
        assert_eq!(&room[..13], b"bad limit '\0\x07");
    }
}
