//! All checks of a host, in the order in which they are told.

use crate::host::{Host, Role, Subject};
use crate::report::Check;
use crate::userfaultfd::Answer;
use crate::{kernel, memory, network, process, rdma, userfaultfd};

/// All checks of a host. `userfaultfd` is what the kernel said; a donor needs none.
pub fn checks(host: &Host, subject: &Subject, userfaultfd: Option<&Answer>) -> Vec<Check> {
    let mut checks = vec![kernel::version(host, subject)];
    checks.extend(userfaultfd.map(userfaultfd::check));
    checks.push(process::privileges(host, subject));
    checks.extend(process::capabilities(host, subject));
    checks.push(process::memlock(host, subject));
    checks.push(memory::cgroup(host, subject));
    checks.push(memory::free(host, subject));
    checks.push(memory::swap(host, subject));
    if subject.role == Role::Client {
        checks.push(memory::huge_pages(host, subject));
    }
    checks.push(memory::overcommit(host, subject));
    checks.push(network::check(host, subject));
    checks.extend(rdma::checks(host, subject));
    checks
}
