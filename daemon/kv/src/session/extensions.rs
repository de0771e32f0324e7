//! MODULE and FUNCTION: none can be loaded here, and who asks which there are is told so.

use super::arguments::{help as help_of, is, repeated, wrong_form};
use super::state::{OK, Session};
use crate::call::{Failure, Outcome};
use crate::reply::Reply;
use bytes::Bytes;

pub fn modules(_: &mut Session, _: &[Bytes]) -> Outcome {
    Ok(Reply::Array(Vec::new()))
}

pub fn load_module(_: &mut Session, _: &[Bytes]) -> Outcome {
    Err("ERR Error loading the extension. Please check the server logs.".into())
}

pub fn unload_module(_: &mut Session, _: &[Bytes]) -> Outcome {
    Err("ERR Error unloading module: no such module with that name".into())
}

pub fn module_help(_: &mut Session, args: &[Bytes]) -> Outcome {
    Ok(help_of(args, &MODULE_HELP))
}

pub fn functions(_: &mut Session, args: &[Bytes]) -> Outcome {
    let mut options = args[2..].iter();
    let (mut with_code, mut library) = (false, None);
    while let Some(option) = options.next() {
        if !with_code && is(option, "withcode") {
            with_code = true;
        } else if library.is_none() && is(option, "libraryname") {
            library = Some(options.next().ok_or("ERR library name argument was not given")?);
        } else {
            // Here Redis does not leave out a line break at the end.
            let option = repeated(option).replace(['\r', '\n'], " ");
            return Err(Failure(format!("ERR Unknown argument {option}").into()));
        }
    }
    Ok(Reply::Array(Vec::new()))
}

pub fn function_statistics(_: &mut Session, _: &[Bytes]) -> Outcome {
    let counts = ["libraries_count", "functions_count"].map(|count| (Reply::word(count), Reply::Integer(0)));
    let engines = vec![(Reply::word("LUA"), Reply::Map(counts.to_vec()))];
    Ok(Reply::Map(vec![(Reply::word("running_script"), Reply::Null), (Reply::word("engines"), Reply::Map(engines))]))
}

pub fn flush_functions(_: &mut Session, args: &[Bytes]) -> Outcome {
    match &args[2..] {
        [] => OK,
        [mode] if is(mode, "sync") || is(mode, "async") => OK,
        [_] => Err("ERR FUNCTION FLUSH only supports SYNC|ASYNC option".into()),
        _ => Err(wrong_form(args)),
    }
}

pub fn function_help(_: &mut Session, args: &[Bytes]) -> Outcome {
    Ok(help_of(args, &FUNCTION_HELP))
}

const MODULE_HELP: [&str; 8] = [
    "LIST",
    "    Return a list of loaded modules.",
    "LOAD <path> [<arg> ...]",
    "    Load a module library from <path>, passing to it any optional arguments.",
    "LOADEX <path> [[CONFIG NAME VALUE] [CONFIG NAME VALUE]] [ARGS ...]",
    "    Load a module library from <path>, while passing it module configurations and optional arguments.",
    "UNLOAD <name>",
    "    Unload a module.",
];

const FUNCTION_HELP: [&str; 6] = [
    "FLUSH [ASYNC|SYNC]",
    "    Delete all the libraries.",
    "LIST [LIBRARYNAME PATTERN] [WITHCODE]",
    "    Return the libraries: there are none.",
    "STATS",
    "    Return information about the running function and the engines.",
];
