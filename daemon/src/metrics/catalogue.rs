//! Every metric of annexd. docs/metrics.md tells the same, and a test compares them.

annex_metrics::catalogue! {
    BUILD = Gauge "annexd_build_info" ["version", "kernel"] "1; the labels say what runs where";
    UPTIME = Gauge "annexd_uptime_seconds" [] "time since annexd started";
    CPU = Counter "annexd_cpu_seconds_total" [] "CPU time that annexd used";
    HEALTH = Gauge "annexd_health" [] "what annex status --check exits with: 0 healthy, 1 degraded, 2 critical";
    CONDITION = Gauge "annexd_condition" ["condition"] "1 while the condition is so, else 0";
    EVENTS = Counter "annexd_events_total" ["event"] "events that annex events tells of";
    CERTIFICATE = Gauge "annexd_certificate_expiry_timestamp_seconds" ["name"] "when this host's certificate expires, in seconds since 1970; absent without [tls]";
    FAULT_WORKERS = Gauge "annexd_fault_workers" [] "threads that answer page faults";
    EVICTORS = Gauge "annexd_evictors" [] "threads that evict";

    POOL_CAPACITY = Gauge "annexd_pool_capacity_bytes" [] "pages that the extents held now could take";
    POOL_USED = Gauge "annexd_pool_used_bytes" [] "pages in the pool, one copy counted";
    POOL_FULL = Gauge "annexd_pool_full" [] "1 while programs get no more of the pool";
    POOL_SPILLED = Gauge "annexd_pool_spilled_bytes" [] "pages in the spill file for want of donors";
    POOL_BACKUP_LAG = Gauge "annexd_pool_backup_lag_bytes" [] "pages that the spill file has no copy of yet";
    EXTENTS = Gauge "annexd_extents" ["state"] "extents: all, and those that lack copies";
    EXTENTS_CROWDED = Gauge "annexd_extents_crowded" [] "extents with two copies on one host or rack";
    REPLICAS = Gauge "annexd_replicas" ["state"] "copies of extents";
    REPLICAS_MOVING = Gauge "annexd_replicas_moving" [] "copies that are to leave their donor";
    REPLICAS_STUCK = Gauge "annexd_replicas_stuck" [] "of these, the ones that nobody else has room for";
    REPAIR_LEFT = Gauge "annexd_repair_left_bytes" [] "bytes to copy until nothing lacks a copy";
    REPAIR_ETA = Gauge "annexd_repair_eta_seconds" [] "how long that takes at repair_rate";
    REPAIRED = Counter "annexd_repaired_bytes_total" [] "bytes copied to new or returned copies";
    HEALED = Counter "annexd_healed_pages_total" [] "pages rewritten after wrong bytes";
    SCRUBBED = Counter "annexd_scrubbed_pages_total" [] "pages that the scrubber looked at";
    HEDGED = Counter "annexd_hedged_reads_total" [] "reads tried again on a second copy since the first was slow";
    LOST_PAGES = Counter "annexd_lost_pages_total" [] "pages that no copy had when they were to be copied";

    DONORS = Gauge "annexd_donors" ["state"] "donors by state";
    DONOR_UP = Gauge "annexd_donor_up" ["donor"] "1 while the donor is up, else 0";
    DONOR_USED = Gauge "annexd_donor_used_bytes" ["donor"] "bytes of pages that lie there";
    DONOR_SLABS = Gauge "annexd_donor_slabs" ["donor", "state"] "slabs: held by this annexd, free, and all that the donor lends";
    DONOR_OPERATIONS = Counter "annexd_donor_operations_total" ["donor", "operation"] "operations that succeeded";
    DONOR_ERRORS = Counter "annexd_donor_errors_total" ["donor"] "operations that failed";
    DONOR_CHECKSUMS = Counter "annexd_donor_checksum_errors_total" ["donor"] "pages whose bytes were wrong, caught by checksum";

    OPERATIONS = Counter "annexd_fabric_operations_total" ["transport", "operation"] "operations that succeeded";
    BYTES = Counter "annexd_fabric_bytes_total" ["transport", "operation"] "bytes of these";
    LATENCY = Histogram "annexd_fabric_latency_seconds" ["transport", "operation"] "from posting to completion";
    ERRORS = Counter "annexd_fabric_errors_total" ["transport", "status"] "operations that failed";
    CONNECTIONS = Gauge "annexd_fabric_connections" ["transport"] "connections now; with verbs, queue pairs";
    RDMA_OPERATIONS = Counter "annex_rdma_operations_total" ["operation"] "RDMA operations that succeeded";
    RDMA_BYTES = Counter "annex_rdma_bytes_total" ["operation"] "bytes of these";
    RDMA_LATENCY = Histogram "annex_rdma_latency_seconds" ["operation"] "from posting to completion";
    RDMA_ERRORS = Counter "annex_rdma_errors_total" ["status"] "RDMA operations that failed";
    RDMA_CONNECTIONS = Gauge "annex_rdma_connections" [] "queue pairs now";

    APPS = Gauge "annexd_apps" [] "apps, those that are not shown one by one as well";
    APP_RESIDENT = Gauge "annexd_app_resident_bytes" ["app"] "anonymous memory that is resident";
    APP_POOL = Gauge "annexd_app_pool_bytes" ["app"] "memory that is in the pool and not resident";
    APP_LIMIT = Gauge "annexd_app_limit_bytes" ["app"] "what may stay resident";
    APP_AUTO = Gauge "annexd_app_limit_auto" ["app"] "1 if annexd finds the limit (auto), 0 if it is fixed";
    APP_TARGET = Gauge "annexd_app_stall_target_ratio" ["app"] "with auto: the share of time that its threads may wait for pages in the pool";
    APP_PROCESSES = Gauge "annexd_app_processes" ["app"] "processes";
    APP_FAULTS = Counter "annexd_app_faults_total" ["app", "kind"] "page faults that annexd answered";
    APP_LATENCY = Histogram "annexd_app_fault_latency_seconds" ["app"] "of faults on pages in the pool, from the message to the page";
    APP_WAITED = Counter "annexd_app_waited_seconds_total" ["app"] "time that its threads waited for pages in the pool";
    APP_EVICTED = Counter "annexd_app_evicted_pages_total" ["app"] "pages evicted";
    APP_CLEAN = Counter "annexd_app_clean_pages_total" ["app"] "of these, the ones that the pool still had";
    APP_ZERO = Counter "annexd_app_zero_pages_total" ["app"] "pages of zeros that were dropped";
    APP_IN = Counter "annexd_app_pages_in_total" ["app"] "pages that came back";
    APP_PREFETCHED = Counter "annexd_app_prefetched_pages_total" ["app"] "of these, the ones that no fault had asked for";

    KV_UP = Gauge "annex_kv_enabled" [] "1 if there is a KV API";
    KV_LOADED = Gauge "annex_kv_loaded_ratio" [] "share of the keys of the annexd before that is taken over";
    KV_KEYS = Gauge "annex_kv_keys" [] "keys";
    KV_USED = Gauge "annex_kv_used_bytes" [] "records, one copy counted";
    KV_HELD = Gauge "annex_kv_held_bytes" [] "pool that they lie in";
    KV_LIMIT = Gauge "annex_kv_limit_bytes" [] "what records may take; 0: as much as there is room for";
    KV_POOL_MIN = Gauge "annex_kv_pool_min_bytes" [] "pool that programs leave to the KV API";
    KV_POOL_MAX = Gauge "annex_kv_pool_max_bytes" [] "the most of the pool that it takes";
    KV_INDEX = Gauge "annex_kv_index_bytes" [] "memory of annexd for the index and the table";
    KV_CACHE = Gauge "annex_kv_cache_bytes" [] "memory of annexd for values that were read lately";
    KV_HITS = Counter "annex_kv_hits_total" [] "reads of keys that were there";
    KV_MISSES = Counter "annex_kv_misses_total" [] "reads of keys that were not";
    KV_CACHE_HITS = Counter "annex_kv_cache_hits_total" [] "hits that needed no donor";
    KV_EXPIRED = Counter "annex_kv_expired_keys_total" [] "keys whose time was over";
    KV_EVICTED = Counter "annex_kv_evicted_keys_total" [] "keys that made room for others";
    KV_LOST = Counter "annex_kv_lost_keys_total" [] "keys that no copy had when they were taken over";
    KV_CLIENTS = Gauge "annex_kv_clients" [] "connections";
    KV_CLIENT_MEMORY = Gauge "annex_kv_client_memory_bytes" [] "memory of annexd that they hold";
    KV_CLIENT_LIMIT = Gauge "annex_kv_client_memory_limit_bytes" [] "what that may be; 0: any";
    KV_CLIENTS_EVICTED = Counter "annex_kv_evicted_clients_total" [] "connections closed since all held too much";
}
