# The list of optimizers is the list of files in src/optim/rules: generated/optim/rules.def has KILN_OPTIMIZER(name) for each.
file(GLOB rules CONFIGURE_DEPENDS src/optim/rules/*.c)
set(list "")
set(KILN_OPTIMIZERS "") # for the manual
foreach(file IN LISTS rules)
    cmake_path(GET file STEM name)
    string(APPEND list "KILN_OPTIMIZER(${name})\n")
    list(APPEND KILN_OPTIMIZERS ${name})
endforeach()
list(JOIN KILN_OPTIMIZERS " , " KILN_OPTIMIZERS)
file(CONFIGURE OUTPUT generated/optim/rules.def CONTENT "${list}" @ONLY)
