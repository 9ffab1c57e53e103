//! The list of families, and the way from a file to a loaded model.

use plimsoll_kernels::Device;

use super::config::FamilyTraits;
use super::decoder::{self, Decoder};
use super::{Architecture, LoadError, ModelShape, StepLimits, llama, qwen2};
use crate::gguf::GgufFile;

/// Families of the Llama shape.
const DECODERS: [FamilyTraits; 2] = [llama::FAMILY, qwen2::FAMILY];

fn family(file: &GgufFile) -> Result<FamilyTraits, LoadError> {
    let found = file.require::<&str>("general.architecture")?;
    DECODERS.into_iter().find(|family| family.architecture == found).ok_or_else(|| LoadError::UnsupportedArchitecture {
        found: found.to_owned(),
        supported: DECODERS.map(|family| family.architecture).join(", "),
    })
}

/// Whether files of this `general.architecture` can be loaded.
pub fn supports(architecture: &str) -> bool {
    DECODERS.iter().any(|family| family.architecture == architecture)
}

/// The sizes the model in `file` will have on `device`, before anything is allocated. Every tensor is checked.
pub fn plan<D: Device>(file: &GgufFile, device: &D, limits: StepLimits) -> Result<ModelShape, LoadError> {
    decoder::plan(file, family(file)?, device, limits)
}

/// Loads the model in `file` onto `device`.
pub fn load<D: Device>(file: &GgufFile, device: &D, limits: StepLimits) -> Result<Box<dyn Architecture<D>>, LoadError> {
    Ok(Box::new(Decoder::load(file, family(file)?, device, limits)?))
}
