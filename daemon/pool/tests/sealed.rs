//! The tests of `scripted` with pages that are sealed: the test bed goes by this program's name.

#[path = "scripted/main.rs"]
mod scripted;
