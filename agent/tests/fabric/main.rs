//! The fabric's providers against the agent's real targets.

mod all;
mod faulty;
mod model;
mod rig;
mod shm;
mod tcp;
mod verbs;
