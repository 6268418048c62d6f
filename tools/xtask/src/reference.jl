# Writes the reference of OxCCL.jl as one page, of its docstrings: julia -e … SOURCE PAGE.

using Markdown

push!(LOAD_PATH, joinpath(ARGS[1], ".."))
include(joinpath(ARGS[1], "OxCCL.jl"))

# All docstrings of a name, in the order of their methods.
function docstrings(binding)
    found = get(Docs.meta(OxCCL), binding, nothing)
    found === nothing && return []
    return [Docs.parsedoc(found.docs[signature]) for signature in found.order]
end

names_of_module = sort!(collect(keys(Docs.meta(OxCCL))), by = binding -> string(binding.var))
open(ARGS[2], "w") do page
    println(page, "<!doctype html><meta charset=\"utf-8\"><title>OxCCL.jl</title>")
    println(page, "<style>body{max-width:50em;margin:auto;font-family:sans-serif}</style><h1>OxCCL.jl</h1>")
    for binding in names_of_module
        exported = Base.isexported(binding.mod, binding.var) ? "" : "OxCCL."
        binding.mod === OxCCL || (exported = "$(binding.mod).")
        binding.var === :OxCCL || println(page, "<h2 id=\"$(binding.var)\"><code>$exported$(binding.var)</code></h2>")
        for text in docstrings(binding)
            show(page, MIME("text/html"), text)
            println(page)
        end
    end
end
