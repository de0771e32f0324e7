//! annex on machines of its own: Debian guests with systemd and Soft-RoCE, run by QEMU without any
//! help from the CPU. What `make vm-test` runs.
//!
//! ```text
//!   ┌ client ───────┐      ┌ this process ─┐      ┌ donor1 … donor3 ┐
//!   │ annexd, apps  ├ wire ┤ switch        ├ wire ┤ annex-agent     │
//!   └───────┬───────┘      └───────┬───────┘      └────────┬────────┘
//!           └──── channel ─────────┴────────── channel ────┘
//! ```
//!
//! - [`guest`]: one machine: boot, run a command on it, put a file there, take its power away.
//!   [`channel`]: how commands get there; [`inside`]: who runs them there. [`switch`]: what joins
//!   the guests; each one's wire can be cut and mended.
//! - [`lab`]: the guests together, with annex installed as a package would. [`image`]: the disks
//!   they boot from. [`load`]: programs that know what their memory must hold.
//! - [`scenarios`]: what is done to them, one function each, to be read like a script.
//!
//! The base disk is made by `tests/vm/image.sh`, once; what was built is on a second disk that is
//! made for each run. Nothing a guest writes is kept but its console, in `target/vm/logs`: kernel
//! and journal are written there as they come.

pub mod channel;
pub mod guest;
pub mod image;
pub mod inside;
pub mod lab;
pub mod load;
pub mod scenarios;
pub mod switch;
