//! The svc-admin binary: the operator console as a process of its own.

fn main() -> std::process::ExitCode {
    ron_service::main_with::<svc_admin::SvcAdmin>()
}
