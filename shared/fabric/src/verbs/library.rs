//! libibverbs, loaded when it is first needed: a machine without it runs annex all the same, over
//! the other providers.
//!
//! Types and inline verbs (`ibv_post_send`, `ibv_poll_cq`, …, which call into the device's driver
//! through its context) come from rdma-sys. All that libibverbs exports is called through this
//! table. Nothing of annex is linked with libibverbs: a test of each program checks it.

use rdma_sys::*;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The name under which all distributions have it.
const FILE: &str = "libibverbs.so.1";

/// libibverbs can't be used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{FILE} can't be loaded ({0}): install it (on Debian and Ubuntu: libibverbs1 and ibverbs-providers)")]
pub struct LibraryError(String);

macro_rules! exported {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs that annex calls.
        #[derive(Debug)]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// The functions are good as long as this lives.
            _handle: libloading::Library,
        }

        impl Library {
            fn load() -> Result<Library, libloading::Error> {
                // SAFETY: loading libibverbs runs its initialisers, which only prepare its own
                // state.
                let handle = unsafe { libloading::Library::new(FILE) }?;
                Ok(Library {
                    // SAFETY: the type is that of rdma-sys's declaration, as `declared_so` makes
                    // sure; the pointer is kept no longer than the handle.
                    $($name: *unsafe { handle.get(concat!(stringify!($name), "\0").as_bytes()) }?,)*
                    _handle: handle,
                })
            }

            /// Compiles only if the table's types are those that rdma-sys declares. Generic and
            /// never called, so that no code is made of it, which would not link.
            #[allow(dead_code, clippy::extra_unused_type_parameters)]
            fn declared_so<T>() {
                $(let _: unsafe extern "C" fn($($argument),*) $(-> $result)? = rdma_sys::$name;)*
            }
        }
    };
}

exported! {
    ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list(*mut *mut ibv_device);
    ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device(*mut ibv_context) -> c_int;
    ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
    ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event(*mut ibv_async_event);
    ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq(*mut ibv_cq) -> c_int;
    ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(*mut ibv_cq, c_uint);
    ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp(*mut ibv_qp) -> c_int;
}

/// The loaded library. It stays for good once it is there; one that is missing is looked for again.
pub(super) fn library() -> Result<&'static Library, LibraryError> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let library = Library::load().map_err(|e| LibraryError(e.to_string()))?;
    Ok(LIBRARY.get_or_init(|| library))
}
