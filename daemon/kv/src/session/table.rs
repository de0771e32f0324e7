//! The session's commands, with what COMMAND tells about them; the texts are Redis'.

use super::state::{Row, Run};
use super::{
    administration, clients, configuration, connection, extensions, info, introspection, keyspace, logs, multi,
};
use crate::call::Handler;
use crate::server::Commands;
use crate::spec::{Flags, Keys, Spec};

/// All commands, the session's first: so a command's number is its row's.
pub fn commands() -> Commands {
    Commands::new(TABLE.iter().map(|row| &row.spec).chain(crate::commands::SPECS))
}

/// A command that the session answers.
const fn row(name: &'static str, arity: i32, flags: &str, run: Run) -> Row {
    Row { spec: Spec::new(name, arity, flags_of(flags), Keys::NONE), run: Some(run) }
}

/// One that works on whole databases and needs nothing of the session.
const fn on_databases(name: &'static str, arity: i32, flags: &str, handler: Handler) -> Row {
    let spec = Spec::new(name, arity, flags_of(flags), Keys::NONE);
    Row { spec: Spec { handler: Some(handler), ..spec }, run: None }
}

/// A name that only its sub-commands answer to.
const fn container(name: &'static str) -> Row {
    Row { spec: Spec::new(name, -2, Flags::NONE, Keys::NONE), run: None }
}

impl Row {
    const fn about(
        self,
        group: &'static str,
        since: &'static str,
        complexity: &'static str,
        summary: &'static str,
    ) -> Row {
        Row { spec: self.spec.about(group, since, complexity, summary), ..self }
    }

    const fn on_keys(mut self, first: i32, last: i32, step: i32) -> Row {
        self.spec.keys = Keys { first, last, step };
        self
    }

    const fn alone(mut self) -> Row {
        self.spec.alone = true;
        self
    }
}

/// One letter per flag: (w)rite, (r)ead only, (m)emory is needed, (a)dmin, no (s)cripts, while
/// (l)oading, when s(t)ale, (F)ast, (n)o authentication needed, not within (M)ULTI, when (b)usy.
const fn flags_of(letters: &str) -> Flags {
    const fn has(letters: &[u8], letter: u8) -> bool {
        let mut at = 0;
        while at < letters.len() {
            if letters[at] == letter {
                return true;
            }
            at += 1;
        }
        false
    }
    let letters = letters.as_bytes();
    Flags {
        write: has(letters, b'w'),
        readonly: has(letters, b'r'),
        denyoom: has(letters, b'm'),
        admin: has(letters, b'a'),
        noscript: has(letters, b's'),
        loading: has(letters, b'l'),
        stale: has(letters, b't'),
        fast: has(letters, b'F'),
        no_auth: has(letters, b'n'),
        no_multi: has(letters, b'M'),
        allow_busy: has(letters, b'b'),
    }
}

#[rustfmt::skip]
pub static TABLE: &[Row] = &[
    row("ping", -1, "F", Run::Now(connection::ping)).about("connection", "1.0.0", "O(1)", "Ping the server"),
    row("echo", 2, "ltF", Run::Now(connection::echo)).about("connection", "1.0.0", "O(1)", "Echo the given string"),
    row("quit", -1, "bsltFn", Run::Now(connection::quit)).about("connection", "1.0.0", "O(1)", "Close the connection"),
    row("select", 2, "ltF", Run::Now(connection::select)).about("connection", "1.0.0", "O(1)", "Change the selected database for the current connection"),
    row("hello", -1, "sltFnb", Run::Now(connection::hello)).about("connection", "6.0.0", "O(1)", "Handshake with Redis"),
    row("auth", -2, "sltFnb", Run::Now(connection::auth)).about("connection", "1.0.0", "O(N) where N is the number of passwords defined for the user", "Authenticate to the server"),
    row("reset", 1, "sltFnb", Run::Now(connection::reset)).about("connection", "6.2.0", "O(1)", "Reset the connection"),
    row("multi", 1, "sltFb", Run::Now(multi::multi)).about("transactions", "1.2.0", "O(1)", "Mark the start of a transaction block"),
    row("exec", 1, "slt", Run::Later(multi::exec)).about("transactions", "1.2.0", "Depends on commands in the transaction", "Execute all commands issued after MULTI"),
    row("discard", 1, "sltFb", Run::Now(multi::discard)).about("transactions", "2.0.0", "O(N), when N is the number of queued commands", "Discard all commands issued after MULTI"),
    row("watch", -2, "sltFb", Run::Later(multi::watch)).about("transactions", "2.2.0", "O(1) for every key.", "Watch the given keys to determine execution of the MULTI/EXEC block").on_keys(1, -1, 1),
    row("unwatch", 1, "sltFb", Run::Now(multi::unwatch)).about("transactions", "2.2.0", "O(1)", "Forget about all watched keys"),
    container("client").about("connection", "2.4.0", "Depends on subcommand.", "A container for client connection commands"),
    row("command", -1, "lt", Run::Now(introspection::all)).about("server", "2.8.13", "O(N) where N is the total number of Redis commands", "Get array of Redis command details"),
    container("config").about("server", "2.0.0", "Depends on subcommand.", "A container for server configuration commands"),
    container("slowlog").about("server", "2.2.12", "Depends on subcommand.", "A container for slow log commands"),
    container("latency").about("server", "2.8.13", "Depends on subcommand.", "A container for latency diagnostics commands"),
    container("memory").about("server", "4.0.0", "Depends on subcommand.", "A container for memory diagnostics commands"),
    container("acl").about("server", "6.0.0", "Depends on subcommand.", "A container for Access List Control commands "),
    container("module").about("server", "4.0.0", "Depends on subcommand.", "A container for module commands"),
    container("function").about("scripting", "7.0.0", "Depends on subcommand.", "A container for function commands"),
    row("info", -1, "lt", Run::Now(info::info)).about("server", "1.0.0", "O(1)", "Get information and statistics about the server"),
    row("wait", 3, "s", Run::Now(administration::wait)).about("generic", "3.0.0", "O(1)", "Wait for the synchronous replication of all the write commands sent in the context of the current connection"),
    row("shutdown", -1, "asltMb", Run::Now(administration::shutdown)).about("server", "1.0.0", "O(N) when saving, where N is the total number of keys in all databases when saving data, otherwise O(1)", "Synchronously save the dataset to disk and then shut down the server"),
    row("debug", -2, "aslt", Run::Later(administration::debug)).about("server", "1.0.0", "Depends on subcommand.", "A container for debugging commands"),
    row("time", 1, "ltF", Run::Now(administration::time)).about("server", "2.6.0", "O(1)", "Return the current server time"),
    row("lastsave", 1, "ltF", Run::Now(administration::last_save)).about("server", "1.0.0", "O(1)", "Get the UNIX time stamp of the last successful save to disk"),
    row("lolwut", -1, "rF", Run::Now(administration::lolwut)).about("server", "5.0.0", "", "Display some computer art and the Redis version"),
    row("role", 1, "sltF", Run::Now(administration::role)).about("server", "2.8.12", "O(1)", "Return the role of the instance in the context of replication"),
    on_databases("dbsize", 1, "rF", keyspace::dbsize).about("server", "1.0.0", "O(1)", "Return the number of keys in the selected database"),
    on_databases("flushall", -1, "w", keyspace::flushall).about("server", "1.0.0", "O(N) where N is the total number of keys in all databases", "Remove all keys from all databases").alone(),
    on_databases("flushdb", -1, "w", keyspace::flushdb).about("server", "1.0.0", "O(N) where N is the number of keys in the selected database", "Remove all keys from the current database").alone(),
    on_databases("swapdb", 3, "wF", keyspace::swapdb).about("server", "4.0.0", "O(N) where N is the count of clients watching or blocking on keys from both databases.", "Swaps two Redis databases").alone(),
    row("client|id", 2, "slt", Run::Now(clients::id)).about("connection", "5.0.0", "O(1)", "Returns the client ID for the current connection"),
    row("client|getname", 2, "slt", Run::Now(clients::name)).about("connection", "2.6.9", "O(1)", "Get the current connection name"),
    row("client|setname", 3, "slt", Run::Now(clients::set_name)).about("connection", "2.6.9", "O(1)", "Set the current connection name"),
    row("client|list", -2, "aslt", Run::Now(clients::list)).about("connection", "2.4.0", "O(N) where N is the number of client connections", "Get the list of client connections"),
    row("client|info", 2, "slt", Run::Now(clients::info)).about("connection", "6.2.0", "O(1)", "Returns information about the current client connection."),
    row("client|kill", -3, "aslt", Run::Now(clients::kill)).about("connection", "2.4.0", "O(N) where N is the number of client connections", "Kill the connection of a client"),
    row("client|pause", -3, "aslt", Run::Now(clients::pause)).about("connection", "2.9.50", "O(1)", "Stop processing commands from clients for some time"),
    row("client|unpause", 2, "aslt", Run::Now(clients::unpause)).about("connection", "6.2.0", "O(N) Where N is the number of paused clients", "Resume processing of clients that were paused"),
    row("client|reply", 3, "slt", Run::Now(clients::reply)).about("connection", "3.2.0", "O(1)", "Instruct the server whether to reply to commands"),
    row("client|no-evict", 3, "aslt", Run::Now(clients::no_evict)).about("connection", "7.0.0", "O(1)", "Set client eviction mode for the current connection"),
    row("client|tracking", -3, "slt", Run::Now(clients::tracking)).about("connection", "6.0.0", "O(1). Some options may introduce additional complexity.", "Enable or disable server assisted client side caching support"),
    row("client|trackinginfo", 2, "slt", Run::Now(clients::tracking_info)).about("connection", "6.2.0", "O(1)", "Return information about server assisted client side caching for the current connection"),
    row("client|getredir", 2, "slt", Run::Now(clients::redirection)).about("connection", "6.0.0", "O(1)", "Get tracking notifications redirection client ID if any"),
    row("client|unblock", -3, "aslt", Run::Now(clients::unblock)).about("connection", "5.0.0", "O(log N) where N is the number of client connections", "Unblock a client blocked in a blocking command from a different connection"),
    row("client|caching", 3, "slt", Run::Now(clients::caching)).about("connection", "6.0.0", "O(1)", "Instruct the server about tracking or not keys in the next request"),
    row("client|help", 2, "lt", Run::Now(clients::help)).about("connection", "5.0.0", "O(1)", "Show helpful text about the different subcommands"),
    row("command|count", 2, "lt", Run::Now(introspection::count)).about("server", "2.8.13", "O(1)", "Get total number of Redis commands"),
    row("command|list", -2, "lt", Run::Now(introspection::list)).about("server", "7.0.0", "O(N) where N is the total number of Redis commands", "Get an array of Redis command names"),
    row("command|info", -2, "lt", Run::Now(introspection::info)).about("server", "2.8.13", "O(N) where N is the number of commands to look up", "Get array of specific Redis command details, or all when no argument is given."),
    row("command|docs", -2, "lt", Run::Now(introspection::docs)).about("server", "7.0.0", "O(N) where N is the number of commands to look up", "Get array of specific Redis command documentation"),
    row("command|getkeys", -4, "lt", Run::Now(introspection::keys)).about("server", "2.8.13", "O(N) where N is the number of arguments to the command", "Extract keys given a full Redis command"),
    row("command|getkeysandflags", -4, "lt", Run::Now(introspection::keys_and_flags)).about("server", "7.0.0", "O(N) where N is the number of arguments to the command", "Extract keys and access flags given a full Redis command"),
    row("command|help", 2, "lt", Run::Now(introspection::help)).about("server", "5.0.0", "O(1)", "Show helpful text about the different subcommands"),
    row("config|get", -3, "aslt", Run::Now(configuration::get)).about("server", "2.0.0", "O(N) when N is the number of configuration parameters provided", "Get the values of configuration parameters"),
    row("config|set", -4, "aslt", Run::Now(configuration::set)).about("server", "2.0.0", "O(N) when N is the number of configuration parameters provided", "Set configuration parameters to the given values"),
    row("config|resetstat", 2, "aslt", Run::Now(configuration::reset_statistics)).about("server", "2.0.0", "O(1)", "Reset the stats returned by INFO"),
    row("config|rewrite", 2, "aslt", Run::Now(configuration::rewrite)).about("server", "2.8.0", "O(1)", "Rewrite the configuration file with the in memory configuration"),
    row("config|help", 2, "lt", Run::Now(configuration::help)).about("server", "5.0.0", "O(1)", "Show helpful text about the different subcommands"),
    row("slowlog|get", -2, "alt", Run::Now(logs::slowlog_get)).about("server", "2.2.12", "O(N) where N is the number of entries returned", "Get the slow log's entries"),
    row("slowlog|len", 2, "alt", Run::Now(logs::slowlog_len)).about("server", "2.2.12", "O(1)", "Get the slow log's length"),
    row("slowlog|reset", 2, "alt", Run::Now(logs::slowlog_reset)).about("server", "2.2.12", "O(N) where N is the number of entries in the slowlog", "Clear all entries from the slow log"),
    row("slowlog|help", 2, "lt", Run::Now(logs::slowlog_help)).about("server", "6.2.0", "O(1)", "Show helpful text about the different subcommands"),
    row("latency|latest", 2, "aslt", Run::Now(logs::latest)).about("server", "2.8.13", "O(1)", "Return the latest latency samples for all events."),
    row("latency|history", 3, "aslt", Run::Now(logs::history)).about("server", "2.8.13", "O(1)", "Return timestamp-latency samples for the event."),
    row("latency|reset", -2, "aslt", Run::Now(logs::latency_reset)).about("server", "2.8.13", "O(1)", "Reset latency data for one or more events."),
    row("latency|doctor", 2, "aslt", Run::Now(logs::doctor)).about("server", "2.8.13", "O(1)", "Return a human readable latency analysis report."),
    row("latency|graph", 3, "aslt", Run::Now(logs::graph)).about("server", "2.8.13", "O(1)", "Return a latency graph for the event."),
    row("latency|histogram", -2, "aslt", Run::Now(logs::histogram)).about("server", "7.0.0", "O(N) where N is the number of commands with latency information being retrieved.", "Return the cumulative distribution of latencies of a subset of commands or all."),
    row("latency|help", 2, "lt", Run::Now(logs::latency_help)).about("server", "2.8.13", "O(1)", "Show helpful text about the different subcommands."),
    row("memory|doctor", 2, "", Run::Now(administration::memory_doctor)).about("server", "4.0.0", "O(1)", "Outputs memory problems report"),
    row("memory|stats", 2, "", Run::Now(administration::memory_stats)).about("server", "4.0.0", "O(1)", "Show memory usage details"),
    row("memory|purge", 2, "", Run::Now(administration::memory_purge)).about("server", "4.0.0", "Depends on how much memory is allocated, could be slow", "Ask the allocator to release memory"),
    row("memory|malloc-stats", 2, "", Run::Now(administration::memory_malloc_stats)).about("server", "4.0.0", "Depends on how much memory is allocated, could be slow", "Show allocator internal stats"),
    row("memory|help", 2, "lt", Run::Now(administration::memory_help)).about("server", "4.0.0", "O(1)", "Show helpful text about the different subcommands"),
    row("acl|whoami", 2, "slt", Run::Now(administration::whoami)).about("server", "6.0.0", "O(1)", "Return the name of the user associated to the current connection"),
    row("acl|cat", -2, "slt", Run::Now(administration::cat)).about("server", "6.0.0", "O(1) since the categories and commands are a fixed set.", "List the ACL categories or the commands inside a category"),
    row("acl|users", 2, "aslt", Run::Now(administration::users)).about("server", "6.0.0", "O(N). Where N is the number of configured users.", "List the username of all the configured ACL rules"),
    row("acl|help", 2, "lt", Run::Now(administration::acl_help)).about("server", "6.0.0", "O(1)", "Show helpful text about the different subcommands"),
    row("module|list", 2, "as", Run::Now(extensions::modules)).about("server", "4.0.0", "O(N) where N is the number of loaded modules.", "List all modules loaded by the server"),
    row("module|load", -3, "asM", Run::Now(extensions::load_module)).about("server", "4.0.0", "O(1)", "Load a module"),
    row("module|loadex", -3, "asM", Run::Now(extensions::load_module)).about("server", "7.0.0", "O(1)", "Load a module with extended parameters"),
    row("module|unload", 3, "asM", Run::Now(extensions::unload_module)).about("server", "4.0.0", "O(1)", "Unload a module"),
    row("module|help", 2, "lt", Run::Now(extensions::module_help)).about("server", "5.0.0", "O(1)", "Show helpful text about the different subcommands"),
    row("function|flush", -2, "sw", Run::Now(extensions::flush_functions)).about("scripting", "7.0.0", "O(N) where N is the number of functions deleted", "Deleting all functions"),
    row("function|list", -2, "s", Run::Now(extensions::functions)).about("scripting", "7.0.0", "O(N) where N is the number of functions", "List information about all the functions"),
    row("function|stats", 2, "sb", Run::Now(extensions::function_statistics)).about("scripting", "7.0.0", "O(1)", "Return information about the function currently running (name, description, duration)"),
    row("function|help", 2, "lt", Run::Now(extensions::function_help)).about("scripting", "7.0.0", "O(1)", "Show helpful text about the different subcommands"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::CommandId;
    use std::collections::HashSet;

    #[test]
    fn no_name_is_in_two_tables() {
        let names: Vec<_> = commands().iter().map(|command| command.spec.name).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
    }

    #[test]
    fn a_sessions_command_has_the_number_of_its_row() {
        let commands = commands();
        for (nth, row) in TABLE.iter().enumerate() {
            assert_eq!(commands.by_full_name(row.spec.name.as_bytes()).map(CommandId::index), Some(nth));
        }
    }

    #[test]
    fn every_sub_command_has_the_parent_that_its_name_says() {
        let commands = commands();
        for command in commands.iter() {
            let parent = command.parent.map(|id| commands.get(id).spec.name);
            assert_eq!(parent, command.spec.parent(), "{}", command.spec.name);
        }
    }
}
