//! Prints the public items of a library, one a line, from the JSON that rustdoc made of it: `library-api FILE`.

use std::process::ExitCode;

use public_api::Builder;

fn main() -> ExitCode {
    let file = std::env::args().nth(1).unwrap_or_default();
    // What the compiler derives for every type says nothing of the library.
    let api = Builder::from_rustdoc_json(&file)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build();
    match api {
        Ok(api) => {
            print!("{api}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{file}: {error}");
            ExitCode::FAILURE
        }
    }
}
