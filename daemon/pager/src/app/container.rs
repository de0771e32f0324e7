//! Containers, found by their cgroups. No runtime is asked.
//!
//! A runtime names a container's cgroup by its id, or by its name:
//!
//! | runtime | cgroup |
//! | --- | --- |
//! | Podman | `libpod-ID.scope`, `libpod-ID` |
//! | Docker | `docker-ID.scope`, `docker/ID` |
//! | containerd, nerdctl | `cri-containerd-ID.scope`, `nerdctl-ID.scope` |
//! | CRI-O | `crio-ID.scope`, `crio-ID` |
//! | Kubernetes without systemd | `podUID/ID` |
//! | LXC, Incus | `lxc.payload.NAME` |
//! | systemd-nspawn | `machine-NAME.scope`, `systemd-nspawn@NAME.service` |
//!
//! Which name belongs to an id stands in files of the runtime that only root may write. They are
//! read up to a size. What is no text of theirs counts as no name.

use crate::kernel::cgroup::{self, Cgroup};
use serde::Deserialize;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// So many digits of an id, at least, tell it.
const SHORTEST_PREFIX: usize = 4;
/// The digits of an id.
const ID: usize = 64;
/// So many are usually shown.
const SHOWN: usize = 12;
/// A longer file is not read.
const LONGEST_FILE: u64 = 16 << 20;
/// Nor are more entries of a folder.
const MOST_ENTRIES: usize = 1 << 16;

/// No container, or not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerError {
    #[error("no container {0} is running")]
    None(String),
    #[error("{named} is the name or the beginning of the id of {} containers: {}", .candidates.len(), .candidates.join(", "))]
    Ambiguous { named: String, candidates: Vec<String> },
}

/// A container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    runtime: &'static str,
    /// Its id, or its name where it has none.
    key: Key,
    pub folder: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Key {
    Id(String),
    Name(String),
}

/// One that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub folder: PathBuf,
    /// What tells it from now on: the name that was given, or its whole id.
    pub lasting: String,
    /// What to call it.
    pub name: String,
}

/// The container of this name, or with this id or an id that begins so.
///
/// # Errors
/// There is none, or there are several.
pub fn find(named: &str) -> Result<Found, ContainerError> {
    find_among(named, &cgroup::all())
}

/// The same, if these are all cgroups.
pub fn find_among(named: &str, cgroups: &[Cgroup]) -> Result<Found, ContainerError> {
    choose(named, &running(cgroups), Path::new("/"))
}

fn running(cgroups: &[Cgroup]) -> Vec<Container> {
    let mut found: Vec<Container> = Vec::new();
    for cgroup in cgroups {
        let Some((runtime, key)) = of_path(&cgroup.path) else { continue };
        match found.iter_mut().find(|known| known.runtime == runtime && known.key == key) {
            // Another hierarchy has it too, and may be the one with the processes.
            Some(known) if !cgroup::is_populated(&known.folder) => known.folder.clone_from(&cgroup.folder),
            Some(_) => {}
            None => found.push(Container { runtime, key, folder: cgroup.folder.clone() }),
        }
    }
    found.retain(|container| cgroup::is_populated(&container.folder));
    found
}

/// What a cgroup's path tells.
fn of_path(path: &str) -> Option<(&'static str, Key)> {
    const BY_PREFIX: [(&str, &str); 5] = [
        ("libpod-", "podman"),
        ("docker-", "docker"),
        ("cri-containerd-", "containerd"),
        ("nerdctl-", "containerd"),
        ("crio-", "cri-o"),
    ];
    let mut parts = path.rsplit('/');
    let (name, parent) = (parts.next()?, parts.next().unwrap_or_default());
    if let Some(name) = name.strip_prefix("lxc.payload.") {
        return Some(("lxc", Key::Name(name.into())));
    }
    if let Some(name) = name.strip_prefix("machine-").and_then(|name| name.strip_suffix(".scope")) {
        return Some(("machine", Key::Name(unescape(name))));
    }
    if let Some(name) = name.strip_prefix("systemd-nspawn@").and_then(|name| name.strip_suffix(".service")) {
        return Some(("machine", Key::Name(unescape(name))));
    }
    let scope = name.strip_suffix(".scope").unwrap_or(name);
    let by_prefix = BY_PREFIX.iter().find_map(|(prefix, runtime)| Some((*runtime, scope.strip_prefix(prefix)?)));
    let by_parent = || match parent {
        "docker" => Some(("docker", name)),
        pod if pod.starts_with("pod") => Some(("kubernetes", name)),
        _ => None,
    };
    let (runtime, id) = by_prefix.or_else(by_parent)?;
    is_id(id).then(|| (runtime, Key::Id(id.into())))
}

fn is_id(text: &str) -> bool {
    text.len() == ID && is_hexadecimal(text)
}

fn is_hexadecimal(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A name as it was before systemd made a unit's of it: `\x2d` is a hyphen.
fn unescape(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, behind)) = rest.split_once("\\x") {
        bytes.extend_from_slice(before.as_bytes());
        match behind.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(2..).unwrap_or_default();
            }
            None => {
                bytes.extend_from_slice(b"\\x");
                rest = behind;
            }
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).unwrap_or_else(|_| name.to_owned())
}

/// An id as a whole counts before a name, and a name before the beginning of an id.
fn choose(named: &str, running: &[Container], root: &Path) -> Result<Found, ContainerError> {
    let names = Names::read(root, running);
    let is_it = |c: &&Container| matches!(&c.key, Key::Id(id) if id == named);
    let is_called = |c: &&Container| names.of(c).iter().any(|name| name == named);
    let begins_so = |c: &&Container| matches!(&c.key, Key::Id(id) if id.starts_with(named));
    let is_prefix = named.len() >= SHORTEST_PREFIX && is_hexadecimal(named);
    let mut by_id = true;
    let mut chosen: Vec<&Container> = running.iter().filter(is_it).collect();
    if chosen.is_empty() {
        chosen = running.iter().filter(is_called).collect();
        by_id = chosen.is_empty();
    }
    if chosen.is_empty() && is_prefix {
        chosen = running.iter().filter(begins_so).collect();
    }
    match chosen[..] {
        [] => Err(ContainerError::None(named.into())),
        [container] => {
            let lasting = match &container.key {
                Key::Id(id) if by_id => id.clone(),
                _ => named.to_owned(),
            };
            let shown = |id: &str| id.chars().take(SHOWN).collect();
            let name = match (&container.key, names.of(container).into_iter().next()) {
                (Key::Id(id), None) => shown(id),
                (_, Some(name)) if by_id => name,
                _ => named.to_owned(),
            };
            Ok(Found { folder: container.folder.clone(), lasting, name })
        }
        ref several => {
            let candidates = several.iter().map(|container| names.describe(container)).collect();
            Err(ContainerError::Ambiguous { named: named.into(), candidates })
        }
    }
}

/// The names that runtimes have left on disk: an id, and what it is called.
#[derive(Default)]
struct Names(Vec<(String, String)>);

/// An entry of Podman's `containers.json`.
#[derive(Deserialize)]
struct Podmans {
    id: String,
    #[serde(default)]
    names: Vec<String>,
}

/// What counts here of Docker's `config.v2.json`.
#[derive(Deserialize)]
struct Dockers {
    #[serde(rename = "Name")]
    name: String,
}

impl Names {
    /// Those of running containers.
    fn read(root: &Path, running: &[Container]) -> Names {
        let ids = || running.iter().filter_map(|c| if let Key::Id(id) = &c.key { Some((c.runtime, id)) } else { None });
        let mut names = Names::default();
        if ids().any(|(runtime, _)| runtime == "podman") {
            let storage = root.join("var/lib/containers/storage");
            for folder in entries(&storage).iter().filter(|name| name.ends_with("-containers")) {
                for file in ["containers.json", "volatile-containers.json"] {
                    let listed: Option<Vec<Podmans>> = read(&storage.join(folder).join(file));
                    let listed = listed.unwrap_or_default().into_iter();
                    names.0.extend(listed.flat_map(|c| c.names.into_iter().map(move |name| (c.id.clone(), name))));
                }
            }
        }
        for (_, id) in ids().filter(|(runtime, _)| *runtime == "docker") {
            let config: Option<Dockers> = read(&root.join("var/lib/docker/containers").join(id).join("config.v2.json"));
            names.0.extend(config.map(|config| (id.clone(), config.name.trim_start_matches('/').to_owned())));
        }
        if ids().any(|(runtime, _)| !["podman", "docker"].contains(&runtime)) {
            for link in entries(&root.join("var/log/containers")) {
                names.0.extend(of_log(&link).into_iter().flatten());
            }
        }
        names
    }

    fn of(&self, container: &Container) -> Vec<String> {
        match &container.key {
            Key::Name(name) => vec![name.clone()],
            Key::Id(id) => self.0.iter().filter(|(of, _)| of == id).map(|(_, name)| name.clone()).collect(),
        }
    }

    /// As a list of candidates shows it.
    fn describe(&self, container: &Container) -> String {
        let id = match &container.key {
            Key::Id(id) => &id[..SHOWN],
            Key::Name(name) => return format!("{name} ({})", container.runtime),
        };
        // The longest says most: where it is one of a pod.
        match self.of(container).into_iter().max_by_key(String::len) {
            Some(name) => format!("{id} ({} {name})", container.runtime),
            None => format!("{id} ({})", container.runtime),
        }
    }
}

/// What `POD_NAMESPACE_NAME-ID.log` says: the container's name alone, within its pod, and within
/// its namespace.
fn of_log(link: &str) -> Option<[(String, String); 3]> {
    let (rest, id) = link.strip_suffix(".log")?.rsplit_once('-')?;
    let mut parts = rest.splitn(3, '_');
    let (pod, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    let called = [name.to_owned(), format!("{pod}/{name}"), format!("{namespace}/{pod}/{name}")];
    is_id(id).then(|| called.map(|name| (id.to_owned(), name)))
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Option<T> {
    // A folder or a device is no such file.
    if !fs::symlink_metadata(path).ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    File::open(path).ok()?.take(LONGEST_FILE).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MOST_ENTRIES);
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaa000000000000000000000000000000000000000000000000000000000001";
    const B: &str = "aaaa000000000000000000000000000000000000000000000000000000000002";

    fn told(path: &str) -> Option<(&'static str, String)> {
        of_path(path).map(|(runtime, key)| match key {
            Key::Id(key) | Key::Name(key) => (runtime, key),
        })
    }

    #[test]
    fn each_runtimes_cgroups_are_known() {
        for (path, runtime) in [
            (format!("/machine.slice/libpod-{A}.scope"), "podman"),
            (format!("/libpod_parent/libpod-{A}"), "podman"),
            (format!("/system.slice/docker-{A}.scope"), "docker"),
            (format!("/docker/{A}"), "docker"),
            (format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{A}.scope"), "containerd"),
            (format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/crio-{A}.scope"), "cri-o"),
            (format!("/kubepods/besteffort/pod9c2e0a4c/{A}"), "kubernetes"),
        ] {
            assert_eq!(told(&path), Some((runtime, A.to_owned())), "{path}");
        }
        assert_eq!(told("/lxc.payload.web"), Some(("lxc", "web".into())));
        assert_eq!(told(r"/machine.slice/machine-my\x2dweb.scope"), Some(("machine", "my-web".into())));
        assert_eq!(told("/machine.slice/systemd-nspawn@web.service"), Some(("machine", "web".into())));
    }

    #[test]
    fn what_is_beside_a_container_is_none() {
        for path in [
            format!("/machine.slice/libpod-conmon-{A}.scope"),
            format!("/machine.slice/libpod-{A}.scope/container"),
            format!("/machine.slice/machine-libpod_pod_{A}.slice"),
            format!("/libpod_parent/{A}"),
            "/lxc.monitor.web".into(),
            "/system.slice/docker.service".into(),
            format!("/system.slice/docker-{}.scope", &A[1..]),
            String::new(),
        ] {
            assert_eq!(told(&path), None, "{path}");
        }
    }

    #[test]
    fn a_name_of_systemds_is_what_it_was_before() {
        assert_eq!(unescape(r"a\x2db\x5cx"), r"a-b\x");
        assert_eq!(unescape(r"a\xg\x2"), r"a\xg\x2");
        assert_eq!(unescape(r"\xff"), r"\xff", "no text");
        assert_eq!(unescape("\\x2é"), "\\x2é");
    }

    fn container(runtime: &'static str, id: &str) -> Container {
        Container { runtime, key: Key::Id(id.into()), folder: format!("/cgroup/{id}").into() }
    }

    /// What three runtimes leave on disk.
    fn disk() -> tempfile::TempDir {
        let disk = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = disk.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let podmans = format!(r#"[{{"id": "{A}", "names": ["web"], "image": "x"}}, {{"id": "{}"}}]"#, "0".repeat(64));
        write("var/lib/containers/storage/overlay-containers/containers.json", &podmans);
        write(&format!("var/lib/docker/containers/{B}/config.v2.json"), r#"{"Name": "/db", "State": {}}"#);
        write(&format!("var/log/containers/shop-7d_default_php-fpm-{A}.log"), "");
        write("var/log/containers/else.log", "");
        disk
    }

    #[test]
    fn a_container_is_found_by_name_by_id_and_by_the_beginning_of_its_id() {
        let disk = disk();
        let both = [container("podman", A), container("docker", B)];
        let found = |named: &str| choose(named, &both, disk.path()).map(|found| (found.lasting, found.name));
        assert_eq!(found("web"), Ok(("web".into(), "web".into())));
        assert_eq!(found("db").unwrap().0, "db");
        assert_eq!(found(A), Ok((A.into(), "web".into())));
        assert_eq!(found("aaa"), Err(ContainerError::None("aaa".into())), "too few digits");
        let refusal = found("aaaa").unwrap_err().to_string();
        assert!(refusal.contains("2 containers: aaaa00000000 (podman web), aaaa00000000 (docker db)"), "{refusal}");
        let alone = choose("aaaa", &both[..1], Path::new("/nowhere")).unwrap();
        assert_eq!((alone.lasting.as_str(), alone.name.as_str()), (A, "aaaa00000000"));
    }

    #[test]
    fn a_container_of_a_pod_has_its_name_alone_and_within_the_pod() {
        let disk = disk();
        let one = [container("containerd", A)];
        for named in ["php-fpm", "shop-7d/php-fpm", "default/shop-7d/php-fpm"] {
            assert_eq!(choose(named, &one, disk.path()).unwrap().lasting, named);
        }
        let twice = [container("containerd", A), container("containerd", A)];
        let refusal = choose("php-fpm", &twice, disk.path()).unwrap_err().to_string();
        assert!(refusal.contains("aaaa00000000 (containerd default/shop-7d/php-fpm)"), "{refusal}");
    }

    #[test]
    fn a_file_that_is_no_list_of_containers_has_no_names() {
        let disk = disk();
        let file = disk.path().join("var/lib/containers/storage/overlay-containers/containers.json");
        for bad in ["", "{", r#"{"id": 1}"#, "[1]"] {
            fs::write(&file, bad).unwrap();
            assert_eq!(choose("web", &[container("podman", A)], disk.path()), Err(ContainerError::None("web".into())));
        }
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        assert!(choose("web", &[container("podman", A)], disk.path()).is_err());
    }
}
