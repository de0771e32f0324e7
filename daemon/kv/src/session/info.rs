//! INFO, in the words Redis uses for what there is, and its zeros for what there is not.

use super::arguments::text;
use super::state::Session;
use crate::call::Outcome;
use crate::reply::Reply;
use crate::server::{REDIS_VERSION, Server};
use crate::store::{DATABASES, Db};
use bytes::Bytes;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

type Section = (&'static str, fn(&Server) -> String);

/// In the order in which they are shown.
const SECTIONS: [Section; 13] = [
    ("server", server),
    ("clients", clients),
    ("memory", memory),
    ("persistence", persistence),
    ("stats", stats),
    ("replication", replication),
    ("cpu", cpu),
    ("modules", |_| String::new()),
    ("commandstats", command_stats),
    ("errorstats", error_stats),
    ("latencystats", latency_stats),
    ("cluster", |_| "cluster_enabled:0\r\n".into()),
    ("keyspace", keyspace),
];
/// These are shown only to those who ask for them or for all.
const NOT_BY_DEFAULT: [&str; 2] = ["commandstats", "latencystats"];

pub fn info(session: &mut Session, args: &[Bytes]) -> Outcome {
    let wanted: Vec<String> = args[1..].iter().map(|section| text(section).to_ascii_lowercase()).collect();
    let asks = |name: &str| wanted.iter().any(|wanted| wanted == name);
    let (everything, default) = (asks("everything"), wanted.is_empty() || asks("default"));
    let all = everything || asks("all");
    let server = &session.server;
    let mut sections = Vec::new();
    for (name, section) in SECTIONS {
        if all || asks(name) || (default && !NOT_BY_DEFAULT.contains(&name)) {
            let title = name[..1].to_uppercase() + &name[1..];
            let title = if name == "cpu" { "CPU".into() } else { title };
            sections.push(format!("# {title}\r\n{}", section(server)));
        }
    }
    for (name, section) in &server.hooks.sections {
        if everything || default || asks(name) {
            sections.push(format!("# {}{}\r\n{}", name[..1].to_uppercase(), &name[1..], section()));
        }
    }
    Ok(Reply::verbatim(sections.join("\r\n")))
}

fn server(server: &Server) -> String {
    let kernel = |name: &str| fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let uptime = server.started.elapsed().as_secs();
    let executable = std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default();
    fields(&[
        ("redis_version", &REDIS_VERSION),
        ("redis_git_sha1", &"00000000"),
        ("redis_git_dirty", &0),
        ("redis_build_id", &concat!("annex-", env!("CARGO_PKG_VERSION"))),
        ("redis_mode", &"standalone"),
        ("os", &format!("{} {} {}", kernel("ostype").trim(), kernel("osrelease").trim(), std::env::consts::ARCH)),
        ("arch_bits", &usize::BITS),
        ("monotonic_clock", &"POSIX clock_gettime"),
        ("multiplexing_api", &"epoll"),
        ("atomicvar_api", &"c11-builtin"),
        ("gcc_version", &"0.0.0"),
        ("process_id", &std::process::id()),
        ("process_supervised", &server.config.value("supervised")),
        ("run_id", &server.run_id),
        ("tcp_port", &server.config.value("port")),
        ("server_time_usec", &now.as_micros()),
        ("uptime_in_seconds", &uptime),
        ("uptime_in_days", &(uptime / (24 * 3600))),
        ("hz", &server.config.value("hz")),
        ("configured_hz", &server.config.value("hz")),
        ("lru_clock", &(now.as_secs() & 0xff_ffff)),
        ("executable", &executable),
        ("config_file", &""),
        ("io_threads_active", &u8::from(server.io_threads.is_active())),
    ])
}

fn clients(server: &Server) -> String {
    let clients = server.clients.borrow();
    let input = clients.values().map(|client| client.input.get()).max().unwrap_or(0);
    let output = clients.values().map(|client| client.output.get()).max().unwrap_or(0);
    fields(&[
        ("connected_clients", &clients.len()),
        ("cluster_connections", &0),
        ("maxclients", &server.config.live.max_clients.get()),
        ("client_recent_max_input_buffer", &input),
        ("client_recent_max_output_buffer", &output),
        ("blocked_clients", &server.stats.blocked.get()),
        ("tracking_clients", &0),
        ("clients_in_timeout_table", &0),
    ])
}

fn memory(server: &Server) -> String {
    let facts = (server.hooks.facts)();
    let (used, peak) = (facts.used_memory, facts.peak_memory.max(facts.used_memory));
    let dataset = used.saturating_sub(facts.overhead);
    let resident = resident_bytes();
    let system = total_memory();
    let limit: u64 = server.config.value("maxmemory").parse().unwrap_or(0);
    fields(&[
        ("used_memory", &used),
        ("used_memory_human", &human(used)),
        ("used_memory_rss", &resident),
        ("used_memory_rss_human", &human(resident)),
        ("used_memory_peak", &peak),
        ("used_memory_peak_human", &human(peak)),
        ("used_memory_peak_perc", &percent(used, peak)),
        ("used_memory_overhead", &facts.overhead),
        ("used_memory_startup", &0),
        ("used_memory_dataset", &dataset),
        ("used_memory_dataset_perc", &percent(dataset, used)),
        ("allocator_allocated", &used),
        ("allocator_active", &used),
        ("allocator_resident", &resident),
        ("total_system_memory", &system),
        ("total_system_memory_human", &human(system)),
        ("used_memory_lua", &0),
        ("used_memory_vm_eval", &0),
        ("used_memory_lua_human", &human(0)),
        ("used_memory_scripts_eval", &0),
        ("number_of_cached_scripts", &0),
        ("number_of_functions", &0),
        ("number_of_libraries", &0),
        ("used_memory_vm_functions", &0),
        ("used_memory_vm_total", &0),
        ("used_memory_vm_total_human", &human(0)),
        ("used_memory_functions", &0),
        ("used_memory_scripts", &0),
        ("used_memory_scripts_human", &human(0)),
        ("maxmemory", &limit),
        ("maxmemory_human", &human(limit)),
        ("maxmemory_policy", &server.config.value("maxmemory-policy")),
        ("allocator_frag_ratio", &"1.00"),
        ("allocator_frag_bytes", &0),
        ("allocator_rss_ratio", &"1.00"),
        ("allocator_rss_bytes", &0),
        ("rss_overhead_ratio", &"1.00"),
        ("rss_overhead_bytes", &0),
        ("mem_fragmentation_ratio", &"1.00"),
        ("mem_fragmentation_bytes", &0),
        ("mem_not_counted_for_evict", &0),
        ("mem_replication_backlog", &0),
        ("mem_total_replication_buffers", &0),
        ("mem_clients_slaves", &0),
        ("mem_clients_normal", &server.memory.held()),
        ("mem_cluster_links", &0),
        ("mem_aof_buffer", &0),
        ("mem_allocator", &"jemalloc"),
        ("active_defrag_running", &0),
        ("lazyfree_pending_objects", &facts.freeing),
        ("lazyfreed_objects", &facts.freed),
    ])
}

fn persistence(server: &Server) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let started = now.saturating_sub(server.started.elapsed()).as_secs();
    fields(&[
        ("loading", &u8::from((server.hooks.facts)().is_loading)),
        ("async_loading", &0),
        ("current_cow_peak", &0),
        ("current_cow_size", &0),
        ("current_cow_size_age", &0),
        ("current_fork_perc", &"0.00"),
        ("current_save_keys_processed", &0),
        ("current_save_keys_total", &0),
        ("rdb_changes_since_last_save", &(server.hooks.facts)().changes),
        ("rdb_bgsave_in_progress", &0),
        ("rdb_last_save_time", &started),
        ("rdb_last_bgsave_status", &"ok"),
        ("rdb_last_bgsave_time_sec", &-1),
        ("rdb_current_bgsave_time_sec", &-1),
        ("rdb_saves", &0),
        ("rdb_last_cow_size", &0),
        ("rdb_last_load_keys_expired", &0),
        ("rdb_last_load_keys_loaded", &0),
        ("aof_enabled", &0),
        ("aof_rewrite_in_progress", &0),
        ("aof_rewrite_scheduled", &0),
        ("aof_last_rewrite_time_sec", &-1),
        ("aof_current_rewrite_time_sec", &-1),
        ("aof_last_bgrewrite_status", &"ok"),
        ("aof_rewrites", &0),
        ("aof_rewrites_consecutive_failures", &0),
        ("aof_last_write_status", &"ok"),
        ("aof_last_cow_size", &0),
        ("module_fork_in_progress", &0),
        ("module_fork_last_cow_size", &0),
    ])
}

fn stats(server: &Server) -> String {
    let facts = (server.hooks.facts)();
    let stats = &server.stats;
    let [commands, input, output] = stats.rates.get();
    fields(&[
        ("total_connections_received", &stats.connections.get()),
        ("total_commands_processed", &stats.commands.get()),
        ("instantaneous_ops_per_sec", &(commands.round() as u64)),
        ("total_net_input_bytes", &stats.input.get()),
        ("total_net_output_bytes", &stats.output.get()),
        ("total_net_repl_input_bytes", &0),
        ("total_net_repl_output_bytes", &0),
        ("instantaneous_input_kbps", &format!("{:.2}", input / 1024.0)),
        ("instantaneous_output_kbps", &format!("{:.2}", output / 1024.0)),
        ("instantaneous_input_repl_kbps", &"0.00"),
        ("instantaneous_output_repl_kbps", &"0.00"),
        ("rejected_connections", &stats.rejected.get()),
        ("sync_full", &0),
        ("sync_partial_ok", &0),
        ("sync_partial_err", &0),
        ("expired_keys", &facts.expired_keys),
        ("expired_stale_perc", &"0.00"),
        ("expired_time_cap_reached_count", &0),
        ("expire_cycle_cpu_milliseconds", &0),
        ("evicted_keys", &facts.evicted_keys),
        ("evicted_clients", &stats.evicted_clients.get()),
        ("total_eviction_exceeded_time", &0),
        ("current_eviction_exceeded_time", &0),
        ("keyspace_hits", &facts.hits),
        ("keyspace_misses", &facts.misses),
        ("pubsub_channels", &0),
        ("pubsub_patterns", &0),
        ("pubsubshard_channels", &0),
        ("latest_fork_usec", &0),
        ("total_forks", &0),
        ("migrate_cached_sockets", &0),
        ("slave_expires_tracked_keys", &0),
        ("active_defrag_hits", &0),
        ("active_defrag_misses", &0),
        ("active_defrag_key_hits", &0),
        ("active_defrag_key_misses", &0),
        ("total_active_defrag_time", &0),
        ("current_active_defrag_time", &0),
        ("tracking_total_keys", &0),
        ("tracking_total_items", &0),
        ("tracking_total_prefixes", &0),
        ("unexpected_error_replies", &0),
        ("total_error_replies", &stats.errors.get()),
        ("dump_payload_sanitizations", &0),
        ("total_reads_processed", &stats.reads.get()),
        ("total_writes_processed", &stats.writes.get()),
        ("io_threaded_reads_processed", &0),
        ("io_threaded_writes_processed", &stats.io_threaded_writes.get()),
        ("reply_buffer_shrinks", &0),
        ("reply_buffer_expands", &0),
    ])
}

fn replication(server: &Server) -> String {
    fields(&[
        ("role", &"master"),
        ("connected_slaves", &0),
        ("master_failover_state", &"no-failover"),
        ("master_replid", &server.run_id),
        ("master_replid2", &"0".repeat(40)),
        ("master_repl_offset", &0),
        ("second_repl_offset", &-1),
        ("repl_backlog_active", &0),
        ("repl_backlog_size", &server.config.value("repl-backlog-size")),
        ("repl_backlog_first_byte_offset", &0),
        ("repl_backlog_histlen", &0),
    ])
}

fn cpu(_: &Server) -> String {
    let (user, system) = cpu_seconds("/proc/self/stat");
    let (thread_user, thread_system) = cpu_seconds("/proc/thread-self/stat");
    let seconds = |seconds: f64| format!("{seconds:.6}");
    fields(&[
        ("used_cpu_sys", &seconds(system)),
        ("used_cpu_user", &seconds(user)),
        ("used_cpu_sys_children", &seconds(0.0)),
        ("used_cpu_user_children", &seconds(0.0)),
        ("used_cpu_sys_main_thread", &seconds(thread_system)),
        ("used_cpu_user_main_thread", &seconds(thread_user)),
    ])
}

fn command_stats(server: &Server) -> String {
    let known = server.commands.iter().filter(|command| !command.stats.is_empty());
    let line = |command: &crate::server::Command| {
        let stats = &command.stats;
        let (calls, time) = (stats.calls.get(), stats.time.get());
        let each = if calls == 0 { 0.0 } else { time.as_nanos() as f64 / 1000.0 / calls as f64 };
        format!(
            "cmdstat_{}:calls={calls},usec={},usec_per_call={each:.2},rejected_calls={},failed_calls={}\r\n",
            command.spec.name,
            time.as_micros(),
            stats.rejected.get(),
            stats.failed.get(),
        )
    };
    known.map(line).collect()
}

fn error_stats(server: &Server) -> String {
    let codes = server.stats.error_codes.borrow();
    codes.iter().map(|(code, count)| format!("errorstat_{}:count={count}\r\n", safe(code))).collect()
}

/// What would end a field or a name in INFO is not shown.
fn safe(code: &str) -> String {
    code.replace(['#', ':', '\n', '\r'], "_")
}

fn latency_stats(server: &Server) -> String {
    if !server.config.live.tracks_latency.get() {
        return String::new();
    }
    let percentiles = server.config.value("latency-tracking-info-percentiles");
    let line = |command: &crate::server::Command| {
        let histogram = command.stats.latency.borrow();
        let histogram = histogram.as_ref()?;
        let values = percentiles.split_ascii_whitespace().map(|percent| {
            let value = histogram.percentile(percent.parse().unwrap_or(0.0));
            format!("p{percent}={value:.3}")
        });
        let values: Vec<String> = values.collect();
        Some(format!("latency_percentiles_usec_{}:{}\r\n", command.spec.name, values.join(",")))
    };
    server.commands.iter().filter_map(line).collect()
}

fn keyspace(server: &Server) -> String {
    let databases = (0..DATABASES).map(|number| (number, server.store.len(Db(number))));
    let known = databases.filter(|(_, (keys, _))| *keys > 0);
    known.map(|(number, (keys, volatile))| format!("db{number}:keys={keys},expires={volatile},avg_ttl=0\r\n")).collect()
}

fn fields(fields: &[(&str, &dyn std::fmt::Display)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect()
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2}%", if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 })
}

/// As Redis rounds them: 1.50M.
fn human(bytes: u64) -> String {
    let scaled = |shift: u32, unit: char| format!("{:.2}{unit}", bytes as f64 / (1u64 << shift) as f64);
    match bytes {
        0..=0x3ff => format!("{bytes}B"),
        0x400..=0xf_ffff => scaled(10, 'K'),
        0x10_0000..=0x3fff_ffff => scaled(20, 'M'),
        0x4000_0000..=0xff_ffff_ffff => scaled(30, 'G'),
        _ => scaled(40, 'T'),
    }
}

fn kilobytes(file: &str, field: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    line.split_ascii_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) << 10
}

fn resident_bytes() -> u64 {
    kilobytes("/proc/self/status", "VmRSS:")
}

fn total_memory() -> u64 {
    kilobytes("/proc/meminfo", "MemTotal:")
}

/// In user and in system mode.
fn cpu_seconds(stat: &str) -> (f64, f64) {
    /// The kernel reports in hundredths of a second, whatever its own clock.
    const TICKS: f64 = 100.0;
    let text = fs::read_to_string(stat).unwrap_or_default();
    // The name may hold blanks, and ends with the last parenthesis.
    let behind = text.rsplit_once(')').map(|(_, behind)| behind).unwrap_or_default();
    let mut numbers = behind.split_ascii_whitespace().skip(11).map(|ticks| ticks.parse::<f64>().unwrap_or(0.0) / TICKS);
    (numbers.next().unwrap_or(0.0), numbers.next().unwrap_or(0.0))
}
