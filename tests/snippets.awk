# snippets.awk - takes the C code out of .md files and of nntrain.h's documentation, one file a piece, to be compiled.
# Usage: awk -v folder=build/snippets -f tests/snippets.awk README.md docs/*.md nntrain.h
#
#   ```c            compiles as it is
#   ```c fragment   goes into a function that has the variables of config/fragment.h
#   ```c internal   goes behind the implementation, whose functions it may use
#
# In nntrain.h's first comment, code is what is indented by 7 spaces or more; what has a main is taken.

function open_piece(kind,    base) {
    base = FILENAME
    gsub(/[^A-Za-z0-9]+/, "_", base)
    name = sprintf("%s/%s_line_%d.c", folder, base, FNR)
    printf "" > name
    if (kind == "fragment") print "#include \"config/fragment.h\"\nvoid fragment(void)\n{" > name
    if (kind == "internal") print "#define NNTRAIN_IMPLEMENTATION\n#include \"nntrain.h\"" > name
    printf "#line %d \"%s\"\n", FNR + 1, FILENAME > name
    piece = kind
}
function close_piece() {
    if (piece == "fragment") print "}" > name
    close(name)
    piece = ""
}
function end_of_code() {
    if (code ~ /int main\(/) {
        name = sprintf("%s/nntrain_h_line_%d.c", folder, code_line)
        printf "#line %d \"%s\"\n%s", code_line, FILENAME, code > name
        close(name)
    }
    code = ""
}

FNR == 1                        { in_header = FILENAME ~ /nntrain\.h$/; in_comment = in_header }
in_comment && /\*\//            { end_of_code(); in_comment = 0 }
in_comment && /^       /        { if (code == "") code_line = FNR; code = code substr($0, 8) "\n"; next }
in_comment && /^ *$/ && code    { code = code "\n"; next }
in_comment && code              { end_of_code() }
in_header                       { next }

!piece && /^```c$/              { open_piece("whole"); next }
!piece && /^```c fragment$/     { open_piece("fragment"); next }
!piece && /^```c internal$/     { open_piece("internal"); next }
!piece && /^```c( |p|$)/        { printf "%s:%d: a kind of snippet that is not known: %s\n", FILENAME, FNR, $0; exit 1 }
piece && /^```$/                { close_piece(); next }
piece                           { print > name }
