//! Which RDMA device, port and GID to use, and what is wrong when none can be used.

use super::gid::{self, GidEntry, GidError, GidKind};
use super::library::{Library, LibraryError, library};
use super::limits::DeviceLimits;
use crate::MAX_OP_LEN;
use rdma_sys::*;
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

/// What the configuration says about the device; what it leaves out is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceChoice {
    /// As `ibv_devices` lists it, such as `mlx5_0`. Left out: the first with a port that is up.
    pub device: Option<String>,
    /// From 1. Left out: the first that is up.
    pub port: Option<u8>,
    /// Index in the port's table of GIDs (`ibv_devinfo -v`). Left out: RoCE v2 with an IPv4
    /// address, or the nearest to that.
    pub gid_index: Option<u8>,
}

/// No device can be used. `Display` says what to do.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error(transparent)]
    Library(#[from] LibraryError),
    #[error(
        "no RDMA device here (`rdma link` lists none): load its driver, or make one of a network interface with Soft-RoCE (modprobe rdma_rxe; rdma link \
         add rxe0 type rxe netdev eth0)"
    )]
    None,
    #[error(
        "the kernel has RDMA devices ({0}), but nothing under /dev/infiniband lets programs use them: modprobe ib_uverbs (package rdma-core \
         does so at boot)"
    )]
    NoUverbs(String),
    #[error(
        "RDMA devices exist ({0}), but libibverbs has no driver for them: install ibverbs-providers (rdma-core), then \
         restart this program, which looks for drivers once"
    )]
    NoProvider(String),
    #[error("no RDMA device '{wanted}' here; there are: {have}: set device to one of these, or leave it out")]
    Unknown { wanted: String, have: String },
    #[error("failed to open RDMA device {device}: {source}{}", open_remedy(.source))]
    Open { device: String, source: io::Error },
    #[error("failed to ask RDMA device {device} for {what}: {source}")]
    Query { device: String, what: &'static str, source: io::Error },
    #[error(
        "RDMA device {device} has no port {port}: it has {ports}, numbered from 1; set port to one of them, or leave it out"
    )]
    NoPort { device: String, port: u8, ports: u8 },
    #[error("port {port} of RDMA device {device} is {state}: {}", port_remedy(.state))]
    PortDown { device: String, port: u8, state: &'static str },
    #[error("port {port} of RDMA device {device} {source}")]
    Gid { device: String, port: u8, source: GidError },
    #[error(
        "RDMA device {device} takes messages of {at_most} bytes at most, annex needs {MAX_OP_LEN}: use another device"
    )]
    ShortMessages { device: String, at_most: u32 },
}

fn open_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => " (run as root, or give the user access to /dev/infiniband/uverbs*)",
        _ => "",
    }
}

fn port_remedy(state: &str) -> &'static str {
    match state {
        "INIT" | "ARMED" => "an InfiniBand port waits for a subnet manager: start opensm somewhere",
        _ => "set its network interface up (ip link set … up) and look at the cable",
    }
}

/// An open device with the port and GID to use. Everything made of it holds it, so that it is
/// closed last.
pub struct Device {
    pub(super) library: &'static Library,
    context: NonNull<ibv_context>,
    name: String,
    /// Vanishes when the device is removed.
    presence: PathBuf,
    pub(super) port: u8,
    pub(super) gid: GidEntry,
    pub(super) lid: u16,
    pub(super) mtu: u32,
    limits: DeviceLimits,
}

// SAFETY: libibverbs lets any thread use a context at any time.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens what was chosen.
    pub fn open(choice: &DeviceChoice) -> Result<Arc<Device>, DeviceError> {
        // Before the library: a machine without RDMA needs neither, and is told so.
        if devices(Path::new(DEVICES)).is_empty() {
            return Err(DeviceError::None);
        }
        let library = library()?;
        let list = List::new(library)?;
        let candidates: Vec<(String, *mut ibv_device)> = match &choice.device {
            None => list.devices().collect(),
            Some(wanted) => {
                let found: Vec<_> = list.devices().filter(|(name, _)| name == wanted).collect();
                if found.is_empty() {
                    let have = list.devices().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
                    return Err(DeviceError::Unknown { wanted: wanted.clone(), have });
                }
                found
            }
        };
        let mut first = None;
        for (name, device) in candidates {
            match Device::open_one(library, device, name, choice) {
                Ok(device) => return Ok(Arc::new(device)),
                // The first one's trouble is told: it is the one that was meant, where there is
                // only one.
                Err(e) => first = first.or(Some(e)),
            }
        }
        Err(first.unwrap_or(DeviceError::None))
    }

    fn open_one(
        library: &'static Library,
        device: *mut ibv_device,
        name: String,
        choice: &DeviceChoice,
    ) -> Result<Device, DeviceError> {
        // SAFETY: the device is of a list that is still held.
        let context = unsafe { (library.ibv_open_device)(device) };
        let context = NonNull::new(context)
            .ok_or_else(|| DeviceError::Open { device: name.clone(), source: io::Error::last_os_error() })?;
        // SAFETY: of that same list; the kernel's path ends with a zero.
        let presence = unsafe { CStr::from_ptr((*device).dev_path.as_ptr()) };
        let presence = PathBuf::from(presence.to_string_lossy().into_owned());
        // From here on dropping it closes the context.
        let mut device = Device {
            library,
            context,
            name,
            presence,
            port: 0,
            gid: GidEntry { index: 0, gid: gid::Gid([0; 16]), kind: GidKind::RoceV2 },
            lid: 0,
            mtu: 0,
            limits: DeviceLimits {
                queue: 0,
                completions: 0,
                reads_out: 0,
                reads_in: 0,
                message: 0,
                region: 0,
                swaps: false,
            },
        };
        device.hush().map_err(|source| DeviceError::Open { device: device.name.clone(), source })?;
        let ports = device.query_limits()?;
        device.choose_port(choice, ports)?;
        if device.limits.message < MAX_OP_LEN {
            return Err(DeviceError::ShortMessages { device: device.name.clone(), at_most: device.limits.message });
        }
        Ok(device)
    }

    /// Takes its limits; how many ports it has.
    fn query_limits(&mut self) -> Result<u8, DeviceError> {
        // SAFETY: all zeros is a valid value of this plain structure.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and `attr` is what is filled.
        let error = unsafe { (self.library.ibv_query_device)(self.context(), &mut attr) };
        if error != 0 {
            let source = io::Error::from_raw_os_error(error);
            return Err(DeviceError::Query { device: self.name.clone(), what: "its limits", source });
        }
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        self.limits = DeviceLimits {
            queue: count(attr.max_qp_wr),
            completions: count(attr.max_cqe),
            reads_out: count(attr.max_qp_init_rd_atom),
            reads_in: count(attr.max_qp_rd_atom),
            message: 0,
            region: attr.max_mr_size,
            swaps: attr.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE,
        };
        Ok(attr.phys_port_cnt)
    }

    fn choose_port(&mut self, choice: &DeviceChoice, ports: u8) -> Result<(), DeviceError> {
        let device = || self.name.clone();
        let wanted = match choice.port {
            Some(port) if port == 0 || port > ports => {
                return Err(DeviceError::NoPort { device: device(), port, ports });
            }
            Some(port) => port..=port,
            None => 1..=ports.max(1),
        };
        let mut down = None;
        for port in wanted {
            let attr = self.query_port(port)?;
            if attr.state != ibv_port_state::IBV_PORT_ACTIVE {
                let state = port_state(attr.state);
                down = down.or(Some(DeviceError::PortDown { device: device(), port, state }));
                continue;
            }
            let folder = Path::new(DEVICES).join(&self.name).join("ports").join(port.to_string());
            let mut table = gid::table(&folder);
            if attr.link_layer == LINK_INFINIBAND {
                table = gid::on_infiniband(table);
            }
            let gid = gid::choose(&table, choice.gid_index).map_err(|source| DeviceError::Gid {
                device: device(),
                port,
                source,
            })?;
            (self.port, self.gid, self.lid, self.mtu) = (port, gid, attr.lid, attr.active_mtu);
            self.limits.message = attr.max_msg_sz;
            return Ok(());
        }
        Err(down.unwrap_or(DeviceError::NoPort { device: device(), port: 1, ports }))
    }

    fn query_port(&self, port: u8) -> Result<ibv_port_attr, DeviceError> {
        // SAFETY: all zeros is a valid value of this plain structure.
        let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open. What the library fills here is the beginning of
        // `ibv_port_attr`, up to its flags: verbs.h calls it the same way.
        let error = unsafe { (self.library.ibv_query_port)(self.context(), port, (&raw mut attr).cast()) };
        match error {
            0 => Ok(attr),
            e => {
                let source = io::Error::from_raw_os_error(e);
                Err(DeviceError::Query { device: self.name.clone(), what: "the state of a port", source })
            }
        }
    }

    pub(super) fn context(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    pub fn gid(&self) -> &GidEntry {
        &self.gid
    }

    /// False once the device was removed. The kernel waits with that until we have closed it.
    pub fn is_present(&self) -> bool {
        self.presence.exists()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}, {}", self.name, self.port, self.gid)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: whatever was made of the context held this device, and is gone.
        unsafe { (self.library.ibv_close_device)(self.context()) };
    }
}

/// `link_layer` of an InfiniBand port (`IBV_LINK_LAYER_INFINIBAND`, which is an anonymous enum's).
/// Devices that don't say are that, too.
const LINK_INFINIBAND: u8 = 1;

fn port_state(state: ibv_port_state::Type) -> &'static str {
    match state {
        ibv_port_state::IBV_PORT_DOWN => "DOWN",
        ibv_port_state::IBV_PORT_INIT => "INIT",
        ibv_port_state::IBV_PORT_ARMED => "ARMED",
        ibv_port_state::IBV_PORT_ACTIVE => "ACTIVE",
        _ => "in an unknown state",
    }
}

/// The devices that libibverbs has a driver for.
struct List {
    library: &'static Library,
    list: NonNull<*mut ibv_device>,
    len: usize,
}

impl List {
    /// A list of one device at least.
    fn new(library: &'static Library) -> Result<List, DeviceError> {
        let mut len = 0;
        // SAFETY: `len` is what is filled.
        let list = unsafe { (library.ibv_get_device_list)(&mut len) };
        let found = NonNull::new(list).map(|list| List { library, list, len: usize::try_from(len).unwrap_or(0) });
        match found {
            Some(list) if list.len > 0 => Ok(list),
            _ => Err(why_none(Path::new(DEVICES), Path::new("/sys/class/infiniband_verbs"))),
        }
    }

    fn devices(&self) -> impl Iterator<Item = (String, *mut ibv_device)> {
        (0..self.len).map(|at| {
            // SAFETY: the list has `len` devices, each good until the list is freed; a name ends
            // with a zero.
            unsafe {
                let device = *self.list.as_ptr().add(at);
                (CStr::from_ptr((*device).name.as_ptr()).to_string_lossy().into_owned(), device)
            }
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: it came from ibv_get_device_list. Devices that are open are not touched.
        unsafe { (self.library.ibv_free_device_list)(self.list.as_ptr()) };
    }
}

/// The kernel's RDMA devices.
/// Whether this host has an RDMA device, usable or not.
pub fn has_device() -> bool {
    !devices(Path::new(DEVICES)).is_empty()
}

const DEVICES: &str = "/sys/class/infiniband";

fn devices(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}

/// Why libibverbs lists no device: what the kernel has tells.
fn why_none(infiniband: &Path, uverbs: &Path) -> DeviceError {
    let have = devices(infiniband).join(", ");
    if have.is_empty() {
        DeviceError::None
    } else if !devices(uverbs).iter().any(|n| n.starts_with("uverbs")) {
        DeviceError::NoUverbs(have)
    } else {
        DeviceError::NoProvider(have)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_devices_modules_and_drivers_is_told_apart() {
        let sys = tempfile::tempdir().unwrap();
        let (infiniband, uverbs) = (sys.path().join("infiniband"), sys.path().join("infiniband_verbs"));
        assert!(matches!(why_none(&infiniband, &uverbs), DeviceError::None));
        std::fs::create_dir_all(infiniband.join("rxe0")).unwrap();
        let said = why_none(&infiniband, &uverbs).to_string();
        assert!(said.contains("(rxe0)") && said.contains("modprobe ib_uverbs"), "{said}");
        std::fs::create_dir_all(uverbs.join("uverbs0")).unwrap();
        let said = why_none(&infiniband, &uverbs).to_string();
        assert!(said.contains("ibverbs-providers"), "{said}");
    }

    #[test]
    fn a_port_that_is_down_says_what_to_do() {
        let down = |state| DeviceError::PortDown { device: "rxe0".into(), port: 1, state }.to_string();
        assert!(down("DOWN").starts_with("port 1 of RDMA device rxe0 is DOWN: set its network interface up"));
        assert!(down("INIT").contains("subnet manager"));
    }
}
